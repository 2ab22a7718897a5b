"""What a caller sees when something is wrong: the words, and that the program works as before afterwards."""

from __future__ import annotations

import io
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
    """An object of another library, that has an array and shows it in one way only."""

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
    """Tensors of a module that is not torch's are torch tensors."""


@pytest.mark.parametrize(
    ("given", "kind"),
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
def test_what_may_be_passed(program: Any, given: Any, kind: type) -> None:
    result = program(given, GOOD)
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


@pytest.mark.parametrize(("dtype", "given"), [("float32", "float32"), ("float16", "float16"), ("int16", "int16")])
def test_other_types_for_bfloat16_are_refused(kinds: Any, dtype: str, given: str) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        kinds(np.ones(3, dtype), [1, 2])
    assert str(error.value) == (
        f"input 0 of forward must be bfloat16[3], not {given}[3]: pass a torch.bfloat16 tensor, an ml_dtypes.bfloat16 "
        "array, a list of numbers, or the bits as uint16"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.5, 2], "1.5 is no integer"),
        ([float("nan"), 2], "nan is no integer"),
        ([None, 2], "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"),
        ([1 << 70, 2], "Python int too large to convert to C long"),
    ],
)
def test_numbers_that_are_no_ints_are_refused(kinds: Any, given: list[Any], message: str) -> None:
    with pytest.raises(ptegpu.InvalidInput) as error:
        kinds(BITS, given)
    assert str(error.value) == f"input 1 of forward must be a tensor of int64: {message}"
    assert [2, 4] == kinds(BITS, [1.0, 2.0])[1].tolist()


def test_what_is_no_program() -> None:
    for given in (3, None, ["model.pte"]):
        with pytest.raises(ptegpu.InvalidInput) as error:
            ptegpu.load(given)
        kind = type(given).__name__
        assert str(error.value) == f"a program is a path, bytes or a file open for reading bytes, not {kind}"


def test_what_load_cannot_use(file: bytes) -> None:
    for how, said in (
        ({"device": 1.5}, 'device is "auto", an index or part of a name, not float'),
        ({"data": 3}, "data is one or several .ptd files, or mappings to bytes, not int"),
    ):
        with pytest.raises(ptegpu.InvalidInput) as error:
            ptegpu.load(file, **how)
        assert str(error.value) == said


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
