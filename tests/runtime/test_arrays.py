"""Arrays of libraries that tests do not install."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptegpu.dtypes import DType
from ptegpu.graph.linear import Var
from ptegpu.runtime.arrays import Kind, as_array


class Named:
    """A dtype as ml_dtypes has it: two opaque bytes, and a name."""

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
    found = as_array(bits.view(Foreign), var, "input 0")
    assert type(found) is np.ndarray and found.tolist() == bits.tolist()
    assert Kind.of([bits.view(Foreign)]).bfloat16 is not None
    assert Kind.of([bits]) == Kind(False, None)


def test_results_are_of_the_dtype_that_came_in() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    assert Kind(False, np.dtype("V2")).result(bits, DType.BF16).dtype == np.dtype("V2")
    assert Kind(False, np.dtype("V2")).result(bits, DType.U16) is bits
    assert Kind(False, None).result(bits, DType.BF16) is bits
