"""What a caller sees when something is wrong: the words, and that the program works as before afterwards."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from tests.exporting import export
from torch import nn

import ptegpu
from ptegpu import portable
from ptegpu.ops import REGISTRY


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
