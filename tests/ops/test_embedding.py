"""Embedding: widths with and without a remainder, every dtype, indices of every rank, clamped indices, split tables."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, PtegpuError, ShapeError
from ptegpu.plan.target import Target

I32, F16 = DType.I32, DType.F16
embedding = partial(Case, "aten.embedding.default")


def table(rows: int, width: int, dtype: DType = DType.F32) -> T:
    low, high = (0, 100) if dtype is DType.U8 else (-100, 100)
    return T((rows, width), dtype, low, high, constant=True)


def indices(*shape: int, below: int) -> T:
    return T(shape, I32, 0, below)


CASES = [
    embedding((table(11, 8), indices(5, below=11), -1, False, False)),
    embedding((table(11, 7), indices(5, below=11))),
    embedding((table(1, 1), indices(3, below=1))),
    embedding((table(300, 20), indices(2, 3, 4, below=300), 0)),
    embedding((table(11, 33), indices(2, 40, below=11))),
    embedding((table(11, 12), indices(below=11))),
    embedding((table(11, 8), indices(0, below=11))),
    embedding((table(11, 8), indices(3, 0, 2, below=11))),
    embedding((table(11, 0), indices(3, below=11))),
    embedding((table(0, 4), indices(0, below=1))),
    embedding((T((11, 8)), indices(3, below=11)), note=" of an input"),
    embedding((table(9, 4), indices(1, 2, 1, 3, 1, 2, 1, below=9))),
    *(embedding((table(9, width, dtype), indices(2, 7, below=9)))
      for dtype in (F16, I32, DType.I8, DType.U8, DType.BOOL) for width in (3, 8, 10)),
]  # fmt: skip

BENCHMARKS = [embedding((table(32000, 2048), indices(1, 4096, below=32000)))]  # at a real size
BROWSER = CASES[1::3]


def test_indices_outside_the_table_are_clamped():
    far = T((6,), I32, values=(-1, -(2**31), 50, 49, 2**31 - 1, 0))
    case = embedding((table(50, 8), far), reference=lambda w, i: w[i.clamp(0, 49)])
    check(case)
    check(case, max_binding_bytes=256)


@pytest.mark.parametrize("f16", [True, False])
@pytest.mark.parametrize("dtype", [DType.F32, F16, DType.I8, DType.BOOL], ids=str)
@pytest.mark.parametrize("width", [3, 8])
def test_table_in_parts(width, dtype, f16):
    limit = 20 * width * 4 + 16
    rows = 3 * limit // (width * dtype.size) + 1
    check(embedding((table(rows, width, dtype), indices(4, 5, below=rows))), f16=f16, max_binding_bytes=limit)


REFUSED = [
    (table(5, 8), T((2,)), InvalidProgram, "'indices' is arg0:float32[2], but must be int32 or int8 or uint8"),
    (T((8,)), indices(2, below=5), ShapeError, "'weight' is arg0:float32[8], but must be [v, d]"),
    (table(0, 8), indices(2, below=5), ShapeError, "the weight has no rows"),
]


@pytest.mark.parametrize("weight, index, error, message", REFUSED, ids=str)
def test_refused(weight, index, error, message):
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in (weight, index)}
    graph, _ = graph_of(embedding((weight, index)), arrays, [np.zeros((2, 8), np.float32)])
    with pytest.raises(PtegpuError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"aten.embedding.default: {message}"
