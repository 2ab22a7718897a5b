"""int64 inside a delegate, whose file says int32: exact, or an error that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cases import Case, Problem, T, device
from tests.mutants import program_of

import ptegpu
from ptegpu.compiler.program import cut_methods, read_source
from ptegpu.dtypes import DType

BIG = 2**31 - 1
X, Y = T((3,), DType.I32), T((3,), DType.I32)


def delegate(op: str, *args: Any, shape: tuple[int, ...] = (3,)) -> bytes:
    case = Case(op, args, out=DType.I32)
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in args if isinstance(a, T)}
    return program_of(Problem(case, arrays, [np.zeros(shape, np.int32)], []), wide=True)


@pytest.mark.parametrize(
    ("content", "inputs", "expected"),
    [
        (delegate("aten.add.Tensor", X, Y, 1), ([BIG, 1, -BIG], [BIG, 1, -BIG]), [2 * BIG, 2, -2 * BIG]),
        (delegate("aten.mul.Tensor", X, Y), ([BIG, 3, 2**40], [BIG, 4, 1]), [BIG * BIG, 12, 2**40]),
        (delegate("aten.mul.Scalar", X, 1000), ([BIG, 3, -BIG],), [1000 * BIG, 3000, -1000 * BIG]),
        (delegate("aten.sum.dim_IntList", X, [0], False, None, shape=()), ([BIG, BIG, BIG],), 3 * BIG),
        (delegate("aten.cumsum.default", X, 0, None), ([BIG, BIG, BIG],), [BIG, 2 * BIG, 3 * BIG]),
        (delegate("aten.neg.default", X), ([-(2**31), 0, 5],), [2**31, 0, -5]),
        (delegate("aten.flip.default", X, [0]), ([1, 2, BIG],), [BIG, 2, 1]),
    ],
)
def test_ints_of_64_bits_do_not_wrap(content: bytes, inputs: tuple[list[int], ...], expected: Any) -> None:
    with ptegpu.load(content, device=device()) as program:
        result = program(*(np.array(x, np.int64) for x in inputs))
    assert np.int64 == np.asarray(result).dtype
    np.testing.assert_array_equal(np.asarray(expected, np.int64), result)


def test_what_fits_stays_on_the_gpu() -> None:
    content = delegate("aten.argmax.default", T((3, 4)), -1, False)
    (cut,) = cut_methods(read_source(content)).values()
    assert 1 == len(cut.graphs) == len(cut.items)
