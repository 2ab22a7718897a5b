"""The errors that a caller gets: their messages, and that the program still works afterwards."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.exporting import export
from tests.methods import method_of
from torch import nn

import ptegpu
from ptegpu import portable
from ptegpu.compiler.partition import partition
from ptegpu.compiler.stretches import join
from ptegpu.dtypes import DType
from ptegpu.format import pte
from ptegpu.graph.flat import FlatMethod
from ptegpu.ops import REGISTRY
from ptegpu.plan.method import Call, Operand, Var
from ptegpu.runtime.method import MethodRunner


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

LISTED = "(input 0: float32[2, 3], input 1: float32[2, 3])"
KINDS = "pass a NumPy array, a torch tensor, an object with DLPack, a list or a number"

WRONG = [
    ((GOOD,), f"forward takes 2 inputs, 1 given {LISTED}"),
    ((GOOD, GOOD, GOOD), f"forward takes 2 inputs, 3 given {LISTED}"),
    (
        (GOOD, GOOD.astype(np.float64)),
        "input 1 of forward must be float32[2, 3], not float64[2, 3]: convert it to float32 first",
    ),
    (
        (GOOD, GOOD.astype(">f4")),
        "input 1 of forward must be float32[2, 3], not >f4[2, 3]: convert it to float32 first",
    ),
    (
        (GOOD, torch.ones(2, 3, dtype=torch.bfloat16)),
        "input 1 of forward must be float32[2, 3], not bfloat16[2, 3]: convert it to float32 first",
    ),
    (
        (GOOD, np.float16(1)),
        "input 1 of forward must be float32[2, 3], not float16[]: convert it to float32 first",
    ),
    ((GOOD, GOOD[0]), "input 1 of forward must be float32[2, 3], not float32[3]: it has 1 dimension, not 2"),
    ((GOOD, 1), "input 1 of forward must be float32[2, 3], not float32[]: it has 0 dimensions, not 2"),
    ((GOOD, GOOD.T), "input 1 of forward must be float32[2, 3], not float32[3, 2]"),
    ((GOOD, ["1", "2"]), "input 1 of forward must be a tensor of float32: it holds text"),
    ((GOOD, object()), f"input 1 of forward must be a tensor of float32, not object: {KINDS}"),
    ((GOOD, "x"), f"input 1 of forward must be a tensor of float32, not str: {KINDS}"),
    ((None, GOOD), f"input 0 of forward must be a tensor of float32, not NoneType: {KINDS}"),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_inputs_are_named(program: Any, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(*inputs)
    assert str(error.value) == message
    np.testing.assert_array_equal(program(GOOD, GOOD), GOOD * 3)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, 3).to_sparse(), torch.zeros(2, 3, device="meta"), torch.zeros(2, 3).to(torch.float8_e5m2)]
)
def test_torch_tensors_without_an_array(program: Any, tensor: torch.Tensor) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(GOOD, tensor)
    assert str(error.value).startswith("input 1 of forward cannot be read from a torch tensor: ")


class Given:
    """An object of another library that exposes its array in one way only."""

    def __init__(self, array: np.ndarray, way: str) -> None:
        self.array, self.way = array, way

    def __getattr__(self, name: str) -> Any:
        if name == self.way:
            return getattr(self.array, name)
        raise AttributeError(name)


class Exchanged(Given):
    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array, "__dlpack__")

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Subclass(torch.Tensor):
    """A subclass of torch's tensors, defined in another module."""


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (GOOD.copy(order="F"), np.ndarray),
        (np.ones((2, 6), np.float32)[:, ::2], np.ndarray),
        (np.broadcast_to(np.float32(1), (2, 3)), np.ndarray),
        (Given(GOOD, "__array_interface__"), np.ndarray),
        (Exchanged(GOOD), np.ndarray),
        (torch.ones(3, 2).T, torch.Tensor),
        (nn.Parameter(torch.ones(2, 3)), torch.Tensor),
        (torch.ones(2, 3).as_subclass(Subclass), torch.Tensor),
        ([[1, 1, 1], (1.0, True, np.float64(1))], np.ndarray),
    ],
    ids=["order F", "strides", "broadcast", "interface", "DLPack", "transposed", "parameter", "subclass", "list"],
)
def test_what_may_be_passed(program: Any, value: Any, kind: type) -> None:
    result = program(value, GOOD)
    assert type(result) is kind and np.asarray(result).tolist() == (GOOD * 3).tolist()


def test_python_numbers_and_lists_take_the_declared_dtype(program: Any) -> None:
    np.testing.assert_array_equal(program([[1, 2, 3], [4, 5, 6]], GOOD), [[3, 4, 5], [6, 7, 8]])


class Kinds(nn.Module):
    """bfloat16, whose elements NumPy cannot hold, and ints."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, n * 2


@pytest.fixture(scope="module")
def kinds() -> Any:
    args = torch.ones(3, dtype=torch.bfloat16), torch.ones(2, dtype=torch.int64)
    with ptegpu.load(export(Kinds(), args, delegate=False)) as loaded:
        yield loaded


BITS = np.array([0x3F80, 0x4000, 0x4040], np.uint16)  # 1, 2, 3


def test_bfloat16_comes_as_torch_as_bits_or_as_numbers(kinds: Any) -> None:
    assert [0x4000, 0x4040, 0x4080] == kinds(BITS, [1, 2])[0].tolist() == kinds([1, 2, 3.0], [1, 2])[0].tolist()
    result, _ = kinds(torch.tensor([1, 2, 3], dtype=torch.bfloat16), torch.tensor([1, 2]))
    assert torch.bfloat16 is result.dtype and [2, 3, 4] == result.tolist()


@pytest.mark.parametrize(("dtype", "name"), [("float32", "float32"), ("float16", "float16"), ("int16", "int16")])
def test_other_types_for_bfloat16_are_refused(kinds: Any, dtype: str, name: str) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        kinds(np.ones(3, dtype), [1, 2])
    assert str(error.value) == (
        f"input 0 of forward must be bfloat16[3], not {name}[3]: pass a torch.bfloat16 tensor, an ml_dtypes.bfloat16 "
        "array, a list of numbers, or the bits as uint16"
    )


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([1.5, 2], "1.5 is not an integer"),
        ([float("nan"), 2], "nan is not an integer"),
        ([None, 2], "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"),
        ([1 << 70, 2], "Python int too large to convert to C long"),
    ],
)
def test_numbers_that_are_no_ints_are_refused(kinds: Any, numbers: list[Any], message: str) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        kinds(BITS, numbers)
    assert str(error.value) == f"input 1 of forward must be a tensor of int64: {message}"
    assert [2, 4] == kinds(BITS, [1.0, 2.0])[1].tolist()


def test_what_is_no_program() -> None:
    for source in (3, None, ["model.pte"]):
        with pytest.raises(ptegpu.InvalidInput) as error:
            ptegpu.load(source)
        kind = type(source).__name__
        assert str(error.value) == f"invalid program {kind}: expected a path, bytes or a file open for reading bytes"


def test_what_load_cannot_use(file: bytes) -> None:
    for options, message in (
        ({"device": 1.5}, 'device is "auto", an index or part of a name, not float'),
        ({"data": 3}, "invalid data int: expected .ptd files, or mappings to bytes"),
    ):
        with pytest.raises(ptegpu.InvalidInput) as error:
            ptegpu.load(file, **options)
        assert str(error.value) == message


def test_execute_takes_a_list(program: Any) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        program.method("forward").execute(GOOD)
    assert str(error.value) == "execute takes a list of the inputs of forward, not ndarray"


def test_a_program_is_read_from_an_open_file_and_one_method_is_named_by_itself(file: bytes) -> None:
    with ptegpu.load(io.BytesIO(file), methods="forward") as program:
        np.testing.assert_array_equal(program(GOOD, GOOD), GOOD * 3)


def test_every_error_is_one_that_executorch_would_raise() -> None:
    assert issubclass(ptegpu.PtegpuError, RuntimeError)


def test_a_closed_program_says_so(file: bytes) -> None:
    program = ptegpu.load(file)
    program.close()
    program.close()
    with pytest.raises(ptegpu.Closed) as error:
        program(GOOD, GOOD)
    assert str(error.value) == "this program was closed; load it again"
    assert repr(program).endswith(", closed>")


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
    linear = FlatMethod("forward", [X], [Y], [mistake])
    with pytest.raises(ptegpu.InvalidProgram) as error:
        join(linear, partition(linear))
    assert str(error.value) == message


def host_method(operator: str, values: list[pte.Value], inputs: tuple[int, ...], args: tuple[int, ...]) -> MethodRunner:
    chain = (pte.KernelCall(operator, args),)
    return method_of(pte.FileMethod("forward", tuple(values), inputs, args[-1:], (chain,), (), "", ""))


def test_arithmetic_of_the_host_that_fails_names_the_instruction() -> None:
    method = host_method("executorch_prim::truediv.Scalar", [6, None, 0.0], (1,), (0, 1, 2))
    assert method(3) == 2.0
    with pytest.raises(ptegpu.ExecutionError) as error:
        method(0)
    assert str(error.value) == "executorch_prim::truediv.Scalar #0: division of 6 by zero"


def test_an_int_that_no_program_takes_is_refused() -> None:
    method = host_method("executorch_prim::truediv.Scalar", [None, 3, 0.0], (0,), (0, 1, 2))
    assert method(6) == 2.0
    with pytest.raises(ptegpu.InvalidInput) as error:
        method(10**400)
    assert str(error.value) == "input 0 of forward must be an int of at most 64 bits"


@pytest.mark.parametrize(
    "argument", [torch.ones(2), np.ones(2), "x", object()], ids=["torch", "numpy", "str", "object"]
)
def test_what_cannot_be_compared_is_not_the_exported_value(argument: Any) -> None:
    method = host_method("executorch_prim::add.Scalar", [4, 3, 0], (0,), (0, 1, 2))
    assert method(4) == 7
    with pytest.raises(ptegpu.InvalidInput) as error:
        method(argument)
    assert str(error.value) == f"input 0 of forward must be 4, the value it was exported with, not {argument!r}"


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
