"""Pooling: maximum and mean over sliding and adaptive windows, indices, ceil mode, dynamic sizes."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.plan.target import Target

F16 = DType.F16
best = partial(Case, "aten.max_pool2d_with_indices.default")
mean = partial(Case, "aten.avg_pool2d.default")
even_mean = partial(Case, "aten._adaptive_avg_pool2d.default")
even_best = partial(Case, "aten.adaptive_max_pool2d.default")

REPEATED = T((1, 2, 5, 5), values=tuple(float(k % 3) for k in range(50)))
NAN = T((1, 1, 4, 4), values=(1, 2, math.nan, 3, 4, 5, math.nan, 0, math.inf, 2, 2, 2, -math.inf, 2, 2, 3))
LOWEST = T((1, 1, 4, 4), values=(-math.inf,) * 16)

LARGEST = [
    best((T((2, 3, 8, 8)), [2, 2])),
    best((T((2, 3, 7, 9)), [3, 3], [2, 2], [1, 1])),
    best((T((1, 3, 7, 9)), [3, 2], [2, 1], [1, 0], [1, 2], True)),
    best((T((1, 2, 9, 8)), [3], [2], [1], [2])),
    best((T((3, 6, 7)), [2, 3], [])),
    best((T((2, 3, 5, 5)), [3, 3], [2, 2], [1, 1], [1, 1], True)),
    best((T((2, 3, 6, 5)), [2, 2], [2, 2], [0, 0], [1, 1], True)),
    best((T((1, 1, 1, 6)), [1, 3], [1, 2], [0, 1])),
    best((REPEATED, [3, 3], [1, 1], [1, 1]), note=" equals"),
    best((NAN, [2, 2], [1, 1]), note=" NaN"),
    best((LOWEST, [2, 2], [2, 2], [1, 1]), note=" lowest"),
    best((T((1, 3, 6, 6), F16), [2, 2])),
    best((T((1, 2, 6, 6), DType.I32, -9, 9), [2, 2], [1, 1])),
    best((T((1, 2, 6, 6), DType.I8, -128, 127), [3, 2], [2, 1], [1, 1])),
    best((T((2, 1, 1), DType.I8, -128, 127), [2], [2], [1], [2], True), note=" in the padding"),
    best((T((2, 1, 1), DType.U8, 0, 255), [2], [2], [1], [2], True), note=" in the padding"),
    best((T((0, 3, 6, 6)), [2, 2])),
    Case("aten.max_pool2d.default", (T((2, 3, 7, 9)), [3, 3], [2, 2], [1, 1], [1, 1], False)),
    Case("aten.max_pool1d.default", (T((2, 3, 17)), [3], [2], [1], [1], True)),
    Case("aten.max_pool3d_with_indices.default", (T((1, 2, 4, 5, 6)), [2, 2, 3], [2, 1, 2], [0, 1, 1])),
    Case("aten.max_pool3d.default", (T((1, 2, 4, 5, 6)), [2, 2, 3], [2, 1, 2], [0, 1, 1])),
    Case("aten.max_pool1d_with_indices.default", (T((2, 3, 17)), [3], [2], [1])),
    Case("aten.adaptive_max_pool1d.default", (T((2, 3, 9)), [4])),
    Case("aten.adaptive_max_pool3d.default", (T((2, 3, 4, 5, 6)), [2, 3, 4])),
    even_best((T((2, 3, 7, 9)), [3, 4])),
    even_best((T((3, 4, 4)), [6, 1])),
    even_best((REPEATED, [2, 2]), note=" equals"),
]

MEAN = [
    mean((T((2, 3, 8, 8)), [2, 2])),
    mean((T((2, 3, 7, 9)), [3, 3], [2, 2], [1, 1])),
    mean((T((2, 3, 7, 9)), [3, 3], [2, 2], [1, 1], False, False)),
    mean((T((2, 3, 7, 9)), [3, 2], [2, 2], [1, 1], True, True)),
    mean((T((2, 3, 7, 9)), [3, 2], [2, 2], [1, 1], True, False)),
    mean((T((2, 3, 7, 9)), [3, 2], [2, 3], [1, 0], True, True, 5)),
    mean((T((3, 6, 7)), [2], [])),
    mean((T((1, 2, 3, 3)), [2, 2], [3, 3], [1, 1], True, False), note=" in the padding"),
    mean((T((2, 5, 7, 7)), [7, 7]), note=" whole"),
    mean((T((2, 5, 7, 7)), [7, 7], [], [0, 0], False, True, 9), note=" whole"),
    mean((T((1, 3, 6, 6), F16), [3, 3], [1, 1], [1, 1])),
    mean((T((0, 3, 6, 6)), [2, 2])),
    Case("aten.avg_pool1d.default", (T((2, 3, 17)), [3], [2], [1], True, False)),
    Case("aten.avg_pool3d.default", (T((1, 2, 4, 5, 6)), [2, 2, 3], [2, 1, 2], [0, 1, 1])),
    even_mean((T((2, 3, 7, 9)), [3, 4])),
    even_mean((T((2, 3, 8, 8)), [2, 4])),
    even_mean((T((3, 4, 5)), [6, 7])),
    even_mean((T((2, 3, 9, 8)), [1, 1])),
    even_mean((T((2, 3, 9, 8), F16), [1, 1])),
    even_mean((T((0, 3, 9, 8)), [1, 1])),
    even_mean((T((2, 3, 9, 8)), [0, 2])),
    Case("aten.adaptive_avg_pool1d.default", (T((2, 3, 9)), [4])),
    Case("aten._adaptive_avg_pool3d.default", (T((2, 3, 4, 5, 6)), [2, 3, 4])),
]

CASES = [*LARGEST, *MEAN]

BENCHMARKS = [  # at real sizes
    best((T((16, 64, 112, 112)), [3, 3], [2, 2], [1, 1])),
    mean((T((16, 256, 56, 56)), [2, 2])),
    even_mean((T((64, 512, 7, 7)), [1, 1])),
]
BROWSER = [c for c in CASES if c.args[0].dtype is F16] + CASES[1::9]


@pytest.mark.parametrize("shape", [(1, 3, 7, 9), (2, 3, 4, 12), (0, 3, 8, 12)])
@pytest.mark.parametrize("make", [best, mean, even_mean], ids=["largest", "mean", "even"])
def test_live_sizes(make, shape):
    sizes = [2, 2] if make is even_mean else [3, 3]
    check(make((T(shape, limit=(2, 3, 8, 12)), sizes)))


def test_workgroups_of_128():
    check(best((T((2, 3, 17, 19)), [3, 3], [1, 1], [1, 1])), max_invocations=128)


REFUSED = [
    (best, (T((4, 4)), [2, 2]), "[4, 4] cannot be pooled over 2 dimensions"),
    (best, (T((1, 3, 0, 4)), [2, 2]), "[1, 3, 0, 4] cannot be pooled over 2 dimensions"),
    (best, (T((1, 3, 4, 4)), [2, 2, 2]), "kernel_size [2, 2, 2] does not fit 2 dimensions"),
    (best, (T((1, 3, 4, 4)), [2, 2], [0, 1]), "stride [0, 1] does not fit 2 dimensions"),
    (
        best,
        (T((1, 3, 4, 4)), [2, 2], [1, 1], [2, 0]),
        "a padding of 2 is more than half of a kernel that reaches over 2",
    ),
    (mean, (T((1, 3, 4, 4)), [5, 2]), "a kernel of [5, 2] does not fit [1, 3, 4, 4] with padding [0, 0]"),
    (mean, (T((1, 3, 4, 4)), [2, 2], [], [0, 0], False, True, 0), "the divisor of a mean is zero"),
    (even_mean, (T((1, 3, 4, 4)), [-1, 2]), "output_size [-1, 2] does not fit 2 dimensions"),
]


@pytest.mark.parametrize("make, args, message", REFUSED, ids=str)
def test_refused(make, args, message):
    case = make(args)
    outs = [np.zeros((1, 3, 2, 2), np.float32), np.zeros((1, 3, 2, 2), np.int32)]
    graph, _ = graph_of(case, {id(args[0]): np.zeros(args[0].shape, np.float32)}, outs if make is best else outs[:1])
    with pytest.raises(ShapeError) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"
