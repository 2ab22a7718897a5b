"""Search in sorted sequences: shared or one per row, ties, NaN, both sides, every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.oracle import Case, T, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.plan.target import Target

F32, F16, I32, I8, U8 = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8
NAN, INF = float("nan"), float("inf")


def ordered(dtype: DType, *shape: int) -> T:
    """Return sorted sequences with equal elements."""
    row = [k // 2 for k in range(shape[-1])]
    return T(shape, dtype, values=tuple(float(v) for _ in range(int(np.prod(shape[:-1]))) for v in row))


def of(dtype: DType, *shape: int) -> T:
    return T(shape, dtype, low=0 if dtype is U8 else -1, high=6)


def searchsorted(*args: Any) -> Case:
    return Case("aten.searchsorted.Tensor", args)


def bucketize(*args: Any) -> Case:
    return Case("aten.bucketize.Tensor", args)


ENDS = T((7,), values=(-INF, -1.0, 0.0, 0.0, 2.5, INF, NAN))
CASES = [
    *(bucketize(of(d, 3, 7), ordered(d, 9), int32, right)
      for d in (F32, F16, I32, I8, U8) for int32, right in ((False, False), (True, True))),
    *(searchsorted(ordered(d, 9), of(d, 3, 7), False, d is I32) for d in (F32, F16, I32)),
    *(searchsorted(ordered(F32, 2, 3, 9), T((2, 3, 5)), False, right) for right in (False, True)),
    *(searchsorted(ordered(I32, 4, 6), of(I32, 4, 6), False, False, side) for side in ("left", "right")),
    *(bucketize(T((7,), values=(NAN, INF, -INF, 0.0, -0.0, 2.5, 9.0)), ENDS, False, right) for right in (False, True)),
    searchsorted(T((2, 3), values=(5.0, 1.0, 3.0, 9.0, 7.0, 8.0)), T((2, 4), high=9), False, False, None,
                 T((2, 3), I32, values=(1, 2, 0, 1, 2, 0))),
    bucketize(T((40,), low=0, high=50), ordered(F32, 100)),  # results above 10, so that a change of a twentieth shows
    searchsorted(ordered(F32, 100), T((40,), low=0, high=50)),
    bucketize(of(I32, 5), ordered(I32, 1)),
    bucketize(of(F32, 5), ordered(F32, 0)),
    bucketize(of(F32, 0, 3), ordered(F32, 4)),
    bucketize(of(F32), ordered(F32, 4)),
    searchsorted(ordered(F32, 0, 4), of(F32, 0, 2)),
    searchsorted(T((2, 3), limit=(4, 9), values=(0.0, 1.0, 2.0, 0.0, 0.5, 3.0)), T((2, 5), limit=(4, 7))),
    bucketize(T((3, 4), limit=(9, 9)), ordered(F32, 6)),
]  # fmt: skip

BENCHMARKS = [bucketize(T((4096, 1024), low=0, high=500), ordered(F32, 1000))]  # at a real size
BROWSER = CASES[1::3]


REFUSED = [
    (bucketize(T((3,)), T((2, 2))), "'boundaries' is arg1:float32[2, 2], but must be [_]"),
    (searchsorted(T((2, 3)), T((3, 3))), "values of [3, 3] do not fit sequences of [2, 3]"),
    (searchsorted(T((2, 3)), T(())), "values of [] do not fit sequences of [2, 3]"),
    (
        searchsorted(T((3,)), T((3,)), False, False, None, T((2,), I32)),
        "a sorter of [2] does not fit sequences of [3]",
    ),
    (
        searchsorted(T((3,)), T((3,)), False, False, None, T((3,), I8)),
        "'sorter' is arg2:int8[3], but must be int32",
    ),
    (searchsorted(T((3,)), T((3,)), False, False, "top"), "invalid side 'top': expected left or right"),
]


@pytest.mark.parametrize(("case", "text"), REFUSED, ids=str)
def test_refused(case: Case, text: str) -> None:
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros(3, np.int64)])
    with pytest.raises(ShapeError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"{case.op}: {text}"
