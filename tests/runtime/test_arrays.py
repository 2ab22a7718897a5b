"""Arrays of libraries that tests do not install."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidInput
from ptegpu.plan.method import Var
from ptegpu.runtime.arrays import ArrayKind, as_array

MASKED = np.ma.masked_array(np.float32([1, 2]), [True, False])


class Named:
    """A dtype like those of ml_dtypes: two opaque bytes, and a name."""

    kind, name, isnative = "V", "bfloat16", True


class Foreign(np.ndarray):
    """An array of such a dtype."""

    @property
    def dtype(self) -> Any:
        return Named()

    def view(self, *_: Any) -> np.ndarray:
        return np.frombuffer(self.tobytes(), np.uint16)


def test_an_array_of_bfloat16_is_its_bits() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    var = Var("x", DType.BF16, (2,))
    converted = as_array(bits.view(Foreign), var, "input 0")
    assert type(converted) is np.ndarray and converted.tolist() == bits.tolist()
    assert ArrayKind.of([bits.view(Foreign)]).bfloat16 is not None
    assert ArrayKind.of([bits]) == ArrayKind(False, None)


def test_results_are_of_the_dtype_that_came_in() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    assert ArrayKind(False, np.dtype("V2")).result(bits, DType.BF16).dtype == np.dtype("V2")
    assert ArrayKind(False, np.dtype("V2")).result(bits, DType.U16) is bits
    assert ArrayKind(False, None).result(bits, DType.BF16) is bits


class Raises:
    """An object with an attribute that raises when it is read."""

    def __init__(self, error: BaseException, name: str) -> None:
        self.error, self.name = error, name

    def __getattr__(self, name: str) -> Any:
        if name == self.name:
            raise self.error
        raise AttributeError(name)


class BadPack:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise self.error


class BadArray:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise KeyError("no data")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (BadPack(ValueError("gone")), "input 0 cannot be read from a BadPack: gone"),
        (BadPack(KeyError("gone")), "input 0 cannot be read from a BadPack: 'gone'"),
        (BadPack(OSError("gone")), "input 0 cannot be read from a BadPack: gone"),
        (BadArray(), "input 0 cannot be read from a BadArray: 'no data'"),
        ([BadArray()], "input 0 must be a tensor of float32: 'no data'"),
        (Raises(ValueError("odd"), "__dlpack__"), "input 0 cannot be read from a Raises: odd"),
        (MASKED, "input 0 is a masked array: fill its gaps first, as with .filled(0)"),
        (MASKED.astype(np.float64), "input 0 is a masked array: fill its gaps first, as with .filled(0)"),
    ],
)
def test_what_cannot_be_read_is_told(argument: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        as_array(argument, Var("x", DType.F32, (2,)), "input 0")
    assert message == str(error.value)


def test_a_subclass_of_an_array_is_its_numbers() -> None:
    class Sub(np.ndarray):
        def __array_finalize__(self, other: Any) -> None:
            pass

    array = as_array(np.float32([1, 2]).view(Sub), Var("x", DType.F32, (2,)), "input 0")
    assert type(array) is np.ndarray and [1, 2] == array.tolist()
