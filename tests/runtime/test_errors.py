"""What a caller sees when something is wrong: the words, and that the program works as before afterwards."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.exporting import export
from torch import nn

import ptegpu
from ptegpu import portable
from ptegpu.dtypes import DType
from ptegpu.format import pte
from ptegpu.graph.linear import Call, Linear, Operand, Var
from ptegpu.ops import REGISTRY
from ptegpu.runtime.join import join
from ptegpu.runtime.method import Method
from ptegpu.runtime.partition import Stretch


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y * 2


@pytest.fixture(scope="module")
def file() -> bytes:
    return export(Sum(), (torch.ones(2, 3), torch.ones(2, 3)))


@pytest.fixture
def program(file: bytes) -> Any:
    with ptegpu.load(file) as loaded:
        yield loaded


GOOD = np.ones((2, 3), np.float32)

WRONG = [
    ((GOOD,), "forward takes 2 inputs, 1 given"),
    ((GOOD, GOOD, GOOD), "forward takes 2 inputs, 3 given"),
    (
        (GOOD, GOOD.astype(np.float64)),
        "input 1 of forward must be float32[2, 3], not float64[2, 3]: convert it to float32 first",
    ),
    ((GOOD, GOOD[0]), "input 1 of forward must be float32[2, 3], not float32[3]: it has 1 dimensions, 2 are needed"),
    ((GOOD, GOOD.T), "input 1 of forward must be float32[2, 3], not float32[3, 2]"),
    ((GOOD, "x"), "input 1 of forward must be a tensor of float32, not str"),
    ((None, GOOD), "input 0 of forward must be a tensor of float32, not NoneType"),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_inputs_are_named(program: Any, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(*inputs)
    assert str(error.value) == message
    np.testing.assert_array_equal(program(GOOD, GOOD), GOOD * 3)


def test_python_numbers_and_lists_take_the_declared_dtype(program: Any) -> None:
    np.testing.assert_array_equal(program([[1, 2, 3], [4, 5, 6]], GOOD), [[3, 4, 5], [6, 7, 8]])


def test_a_closed_program_says_so(file: bytes) -> None:
    program = ptegpu.load(file)
    program.close()
    program.close()
    with pytest.raises(ptegpu.Closed) as error:
        program(GOOD, GOOD)
    assert str(error.value) == "this program was closed; load it again"


def test_an_unknown_method_lists_those_there_are(program: Any) -> None:
    with pytest.raises(KeyError) as error:
        program.method("decode")
    assert error.value.args == ("no method 'decode'; the program has forward",)


def test_all_unsupported_operators_are_listed_at_load_with_counts(file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aten.add.Tensor", "aten.mul.Tensor"):
        monkeypatch.delitem(REGISTRY, name)
        monkeypatch.delitem(portable.PORTABLE, name)
    with pytest.raises(ptegpu.UnsupportedProgram) as error:
        ptegpu.load(file)
    assert str(error.value) == (
        "method forward uses operators that ptegpu does not have:\n"
        "     1 × aten.add.Tensor(float32[2, 3], float32[2, 3], 1)\n"
        "     1 × aten.mul.Tensor(float32[2, 3], float32[])"
    )


def test_another_backend_is_named(file: bytes) -> None:
    renamed = file.replace(b"VulkanBackend", b"OthersBackend")
    with pytest.raises(ptegpu.UnsupportedProgram) as error:
        ptegpu.load(renamed)
    assert str(error.value) == (
        "method forward calls the backend OthersBackend; ptegpu runs VulkanBackend and programs without a delegate: "
        "export with VulkanPartitioner or WebGPUPartitioner"
    )


def test_complex_tensors_are_named() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(torch.fft.rfft(x))

    with pytest.raises(ptegpu.UnsupportedProgram) as error:
        ptegpu.load(export(Spectrum(), (torch.ones(2, 8),)))
    assert str(error.value) == (
        "method forward has tensors that ptegpu does not compute with: v1 is complex64[2, 5]; "
        "export it with tensors of bools, ints and floats"
    )


def test_a_device_that_is_not_there_lists_those_that_are(file: bytes) -> None:
    with pytest.raises(ptegpu.NoAdapter, match="no such gpu"):
        ptegpu.load(file, device="no such gpu")


def test_threads_on_one_program_take_turns(program: Any) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.full((2, 3), number, np.float32)
        for _ in range(20):
            if not np.array_equal(program(x, x), x * 3):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


# Programs by hand, which need no GPU


def call(op: str, *args: Operand, outs: Sequence[Var]) -> Call:
    return Call(op, args, tuple(outs), f"{op} #0")


X, Y, N = Var("x", DType.F32, (2, 3), kind="input"), Var("y", DType.F32, (2, 3)), Var("n", None)
MISTAKEN = [
    (
        call("aten.relu.default", outs=[Y]),
        "aten.relu.default #0: aten.relu.default: argument 'x' is missing",
    ),
    (
        call("aten.view_copy.default", True, (2, 3), outs=[Y]),
        "aten.view_copy.default #0: aten.view_copy.default: argument 'x' cannot be True (a tensor is required)",
    ),
    (call("aten.relu.default", X, outs=[N]), "aten.relu.default #0 gives a tensor, the program says an int"),
    (call("sym_size.int", X, 0, outs=[Y]), "sym_size.int #0 gives an int, the program says a tensor"),
    (call("aten.view_copy.default", X, (6,), outs=[Y, Y]), "aten.view_copy.default #0 cannot have 2 results"),
    (call("aten.mm.default", X, X, outs=[Y, Y]), "aten.mm.default #0 cannot have 2 results"),
    (call("aten.relu.default", X, outs=[]), "aten.relu.default #0 cannot have 0 results"),
    (
        call("sdpa_with_kv_cache.default", X, outs=[Y]),
        "sdpa_with_kv_cache.default #0: sdpa_with_kv_cache.default: argument 'key' is missing",
    ),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKEN, ids=[m for _, m in MISTAKEN])
def test_arguments_and_results_of_other_kinds_are_refused(mistake: Call, message: str) -> None:
    with pytest.raises(ptegpu.InvalidProgram) as error:
        join(Linear("forward", [X], [Y], [mistake]), [Stretch(0, [mistake])])
    assert str(error.value) == message


def host_method(operator: str, values: list[pte.Value], inputs: tuple[int, ...], args: tuple[int, ...]) -> Method:
    chain = (pte.KernelCall(operator, args),)
    return Method(pte.Method("forward", tuple(values), inputs, args[-1:], (chain,), (), "", "", ()), {}, None)


def test_arithmetic_of_the_host_that_overflows_names_the_instruction() -> None:
    method = host_method("executorch_prim::truediv.Scalar", [None, 3, 0.0], (0,), (0, 1, 2))
    assert method(6) == 2.0
    with pytest.raises(ptegpu.ExecutionError) as error:
        method(10**400)
    assert str(error.value) == (
        "executorch_prim::truediv.Scalar #0 failed: integer division result too large for a float"
    )


@pytest.mark.parametrize("given", [torch.ones(2), np.ones(2), "x", object()], ids=["torch", "numpy", "str", "object"])
def test_what_cannot_be_compared_is_not_the_exported_value(given: Any) -> None:
    method = host_method("executorch_prim::add.Scalar", [4, 3, 0], (0,), (0, 1, 2))
    assert method(4) == 7
    with pytest.raises(ptegpu.InvalidInput) as error:
        method(given)
    assert str(error.value) == f"input 0 of forward was exported with the value 4 and takes no other, not {given!r}"


def test_a_scale_of_zero_is_found_at_load() -> None:
    class Quantized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.25, 3, -128, 127, torch.int8)

    data = export(Quantized(), (torch.ones(4),))
    scale = np.float64(0.25).tobytes()
    assert data.count(scale) == 1
    with pytest.raises(ptegpu.InvalidProgram) as error:
        ptegpu.load(data.replace(scale, bytes(8)))
    assert str(error.value).endswith(", 0.0, 3, -128, 127, None): float division by zero")
