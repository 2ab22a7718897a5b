"""Joins, overlays, padding and rolling: every dimension, every dtype, many operands, empty tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.oracle import Case, S, T, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
EVERY = (F32, F16, I32, I8, U8, BOOL)
END = 2**63 - 1  # how PyTorch writes "to the end"


def aten(name: str, *args: Any, **more: Any) -> Case:
    return Case(f"aten.{name}", args, **more)


def of(dtype: DType, *shape: int) -> T:
    return T(shape, dtype, low=0 if dtype is U8 else -9, high=9)


JOINED = [
    *(aten("cat.default", [T((2, 3, 4)), T((2, 3, 4)), T((2, 3, 4))], dim) for dim in (0, 1, 2, -1, -3)),
    *(aten("cat.default", [of(d, 3, 2), of(d, 3, 5), of(d, 3, 1)], 1) for d in EVERY),
    *(aten("cat.default", [of(d, 3, 4), of(d, 3, 8)], 1) for d in EVERY),
    *(aten("cat.default", [T((k % 3 + 1, w)) for k in range(count)], 0) for count in (1, 7, 8, 15, 50) for w in (1, 4)),
    aten("cat.default", [T((3, k % 4), I8) for k in range(16)], 1),
    aten("cat.default", [T((0,)), T((2, 3)), T((0,)), T((1, 3))], 0),
    aten("cat.default", [T((0,)), T((0,))], 0),
    aten("cat.default", [T((2, 0)), T((2, 3))], 1),
    aten("cat.default", [T((0, 2)), T((0, 3))], 1),
    aten("cat.default", [T((1030,)), T((5,))], 0),
    aten("cat.default", [T((2, 3, 1, 2, 1, 2, 1, 2)), T((2, 3, 1, 1, 1, 2, 1, 2))], 3),
    aten("cat.default", [T((2, 3), I32), T((2, 3))], 0),
    aten("cat.default", [T((2, 4), F16), T((2, 4))], 1),
    aten("cat.default", [T((2, 4), BOOL), T((2, 4), I32)], 1),
    aten("cat.default", [T((2, 3), limit=(5, 6)), T((2, 4), limit=(5, 8))], 1),
    aten("cat.default", [T((1, 4), limit=(3, 4)), T((0, 4), limit=(2, 4)), T((2, 4))], 0),
    *(aten("stack.default", [T((2, 3)), T((2, 3)), T((2, 3))], dim) for dim in (0, 1, 2, -1)),
    *(aten("stack.default", [of(d, 5), of(d, 5)], 1) for d in EVERY),
    aten("stack.default", [T((4,))] * 9, 0),
    aten("stack.default", [T(()), T(())], 0),
    aten("stack.default", [T((0, 2))], 1),
]  # fmt: skip

SPANS = [((None, None), 6), ((1, 4), 3), ((-2, END), 2), ((-99, 2), 2), ((3, 3), 0)]
OVERLAID = [
    *(aten("slice_scatter.default", T((6, 3)), T((n, 3)), 0, *span, 1) for span, n in SPANS),
    *(aten("slice_scatter.default", T((6, 6)), T((6, n)), 1, *span, 1) for span, n in SPANS),
    *(aten("slice_scatter.default", of(d, 3, 5, w), of(d, 3, 2, w), 1, 1, 5, 2) for d in EVERY for w in (3, 4)),
    aten("slice_scatter.default", T((5, 4), F16), T((2, 4)), 0, 1, 3, 1),
    aten("slice_scatter.default", T((4, 4), limit=(9, 4)), T((2, 4)), 0, -2, END, 1),
    *(aten("slice_scatter.default", of(d, 8, w), of(d, 2, w), 0, S(3, 0), S(5, 2), 1)
      for d in (F32, I8) for w in (4, 3)),
    aten("slice_scatter.default", T((8, 4)), T((3, 4)), 0, S(-3, 0), S(8, 3), 1),
    *(aten("select_scatter.default", T((3, 4, 5)), T(shape), dim, index)
      for dim, shape in ((0, (4, 5)), (1, (3, 5)), (-1, (3, 4))) for index in (0, -1)),
    *(aten("select_scatter.default", of(d, 3, 8), of(d, 8), 0, 1) for d in EVERY),
    aten("select_scatter.default", T((5, 3)), T((3,)), 0, S(-2, 0)),
    aten("select_scatter.default", T((5,)), T(()), 0, 2),
]  # fmt: skip

MOVED = [
    *(aten("constant_pad_nd.default", T(shape), pad, value) for shape, pad, value in (
        ((3,), [1, 2], 0), ((2, 3), [1, 0], 1.5), ((2, 3), [0, 1, 2, 0], -1), ((2, 3), [-1, 0], 0),
        ((4, 5), [-1, 2, -2, -1], 7), ((2, 3, 4), [0, 0, 1, 1], 0), ((2, 3, 4, 5), [1, 1, 2, 2], math.inf),
        ((2, 3), [], 0), ((2, 3), [-2, -1], 0), ((0, 3), [1, 1, 2, 0], 4), ((2, 1, 2, 1, 2, 1, 2, 1), [1] * 16, 2),
        ((1030,), [3, 0], 0), ((2, 3), [0, 0, 0, 0], 1),
    )),
    *(aten("constant_pad_nd.default", of(d, 3, 5), [1, 2, 0, 1], 1) for d in EVERY),
    aten("constant_pad_nd.default", T((2, 3), limit=(5, 6)), [1, 1], 9.0),
    *(aten("roll.default", T((3, 4, 5)), shifts, dims) for shifts, dims in (
        ([1], [0]), ([-1], [1]), ([2], [2]), ([7, -3], [0, 2]), ([3], []), ([-70], []), ([1, 1], [1, 1]), ([4], [1]),
    )),
    *(aten("roll.default", of(d, 3, 8), [3], [1]) for d in EVERY),
    aten("roll.default", T((0, 3)), [1], [0]),
    aten("roll.default", T(()), [1], []),
]  # fmt: skip

TRIANGLES = [
    *(aten(f"{name}.default", of(d, 3, 5), 1) for name in ("tril", "triu") for d in EVERY),
    *(aten(f"{name}.default", T((2, 3, 4)), k) for name in ("tril", "triu") for k in (0, -1, 2, -2, 9, -(2**40))),
    *(aten(f"{name}.default", T(s)) for name in ("tril", "triu") for s in ((1, 1), (0, 3), (2, 3, 0), (33, 40))),
    aten("tril.default", T((2, 3, 4), limit=(5, 9, 8))),
    aten("triu.default", T((2, 2), values=(math.nan, math.inf, math.nan, math.inf))),
]

CASES = [*JOINED, *OVERLAID, *MOVED, *TRIANGLES]

BENCHMARKS = [  # at real sizes
    aten("cat.default", [T((4096, 2048)), T((4096, 2048))], 1),
    aten("cat.default", [T((2048, 4096)), T((2048, 4096))], 0),
    aten("constant_pad_nd.default", T((16, 64, 112, 112)), [1, 1, 1, 1], 0.0),
]


def _packed(case: Case) -> bool:
    first = case.args[0][0] if isinstance(case.args[0], list) else case.args[0]
    return first.dtype in (F16, I8, BOOL)


BROWSER = [c for c in CASES if _packed(c)][::2]


def test_at_most_eight_bindings() -> None:
    case = aten("cat.default", [T((2,)) for _ in range(60)], 0)
    arrays = {id(a): np.zeros(2, np.float32) for a in case.args[0]}
    graph, _ = graph_of(case, arrays, [np.zeros(120, np.float32)])
    plan = plan_of(graph, device().target)
    storage = [len(d.bindings) - 1 for d in plan.dispatches]
    assert max(storage) == 8
    assert len(storage) == 9 + 2 + 1  # seven operands per kernel: 60, then 9, then 2 tensors


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (aten("cat.default", [T((2, 3)), T((2, 4))], 0), "[2, 3], [2, 4] cannot be joined along dimension 0"),
        (aten("cat.default", [T((2, 3)), T((2,))], 0), "[2, 3], [2] cannot be joined along dimension 0"),
        (aten("stack.default", [T((2, 3)), T((2, 4))], 0), "[2, 3], [2, 4] cannot be stacked"),
        (
            aten("slice_scatter.default", T((4, 3)), T((1, 3)), 0, 1, 3, 1),
            "a slice of [2, 3] cannot be replaced by [1, 3]",
        ),
        (
            aten("select_scatter.default", T((4, 3)), T((4,)), 0, 1),
            "a selection of [3] cannot be replaced by [4]",
        ),
        (aten("constant_pad_nd.default", T((2, 3)), [1], 0), "[1] cannot pad [2, 3]"),
        (aten("constant_pad_nd.default", T((2, 3)), [-2, -2], 0), "[-2, -2] removes more than [2, 3] has"),
        (aten("tril.default", T((3,))), "[3] is not a matrix"),
    ],
    ids=str,
)
def test_refusals(case: Case, text: str) -> None:
    arguments = [a for x in case.args for a in (x if isinstance(x, list) else [x])]
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in arguments if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros(4, np.float32)])
    with pytest.raises(ShapeError) as raised:
        plan_of(graph, device().target)
    assert str(raised.value) == f"{case.op}: {text}"
