"""Indexing: one or several indices at any dimensions, negative and out-of-range indices, every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
EVERY = (F32, F16, I32, I8, U8, BOOL)


def aten(name: str, *args: Any, **more: Any) -> Case:
    return Case(f"aten.{name}", args, **more)


def of(dtype: DType, *shape: int) -> T:
    return T(shape, dtype, low=0 if dtype is U8 else -9, high=9)


def at(size: int, *shape: int) -> T:
    """Return non-negative indices into a dimension of this size."""
    return T(shape, I32, low=0, high=size)


def signed(size: int, *shape: int) -> T:
    return T(shape, I32, low=-size, high=size)


def listed(*values: int) -> T:
    return T((len(values),), I32, values=values)


GATHERED = [
    *(aten("gather.default", T((3, 4, 5)), dim, at((3, 4, 5)[dim], 3, 4, 5), False) for dim in (0, 1, 2, -1)),
    *(aten("gather.default", T((3, 4, 5)), 1, at(4, *shape)) for shape in ((2, 7, 3), (1, 1, 1), (3, 0, 5))),
    *(aten("gather.default", of(d, 3, 8), 1, at(8, 3, 5)) for d in EVERY),
    aten("gather.default", T((5,)), 0, at(5, 9)),
    aten("gather.default", T((5,)), 0, at(5)),
    aten("gather.default", T(()), 0, at(1, 3)),
    aten("gather.default", T(()), 0, at(1)),
    aten("gather.default", T((2, 1, 2, 1, 3, 1, 2, 2)), 4, at(3, 2, 1, 2, 1, 5, 1, 2, 2)),
    aten("gather.default", T((3, 4), limit=(6, 8)), 1, at(4, 3, 2)),
    *(aten("index_select.default", T((3, 4, 5)), dim, at((3, 4, 5)[dim], 6)) for dim in (0, 1, 2, -1)),
    *(aten("index_select.default", of(d, 5, w), 0, at(5, 7)) for d in EVERY for w in (4, 3)),
    aten("index_select.default", T((4, 3)), 0, at(4)),
    aten("index_select.default", T(()), 0, at(1, 1)),
    aten("index_select.default", T((4, 3)), 1, at(3, 0)),
    aten("index_select.default", T((2, 3), limit=(9, 3)), 0, at(2, 4)),
]  # fmt: skip

TAKEN = [
    *(aten("index.Tensor", T((5,)), [signed(5, *shape)]) for shape in ((), (1,), (7,), (2, 3), (0,))),
    *(aten("index.Tensor", T((3, 4, 5)), [*(None,) * d, signed((3, 4, 5)[d], *shape)])
      for d in range(3) for shape in ((6,), (2, 3))),
    *(aten("index.Tensor", of(d, 5, w), [signed(5, 7)]) for d in EVERY for w in (8, 3)),
    aten("index.Tensor", T((3, 4, 5)), [signed(3, 6), signed(4, 6)]),
    aten("index.Tensor", T((3, 4, 5)), [None, signed(4, 6), signed(5, 6)]),
    aten("index.Tensor", T((3, 4, 5)), [signed(3, 6), None, signed(5, 6)]),
    aten("index.Tensor", T((3, 4, 5)), [signed(3, 2, 1), signed(4, 3), signed(5)]),
    aten("index.Tensor", T((3, 4, 5, 6)), [None, signed(4, 2), None, signed(6, 3, 1)]),
    aten("index.Tensor", T((2, 3, 2, 3, 2, 3)), [signed(n, 4) for n in (2, 3, 2, 3, 2, 3)]),
    aten("index.Tensor", T((3, 0)), [signed(3, 2)]),
    aten("index.Tensor", T((3, 4), limit=(8, 4)), [signed(3, 5)]),
]  # fmt: skip

WRITTEN = [
    *(aten("index_put.default", of(d, 5, 3), [listed(3, -5)], of(d, 2, 3), False) for d in EVERY),
    aten("index_put.default", T((5, 3)), [listed(1, 2)], T(())),
    aten("index_put.default", T((5, 3)), [listed(1, 4)], T((3,))),
    aten("index_put.default", T((3, 4, 5)), [None, listed(3, 1)], T((3, 2, 5))),
    aten("index_put.default", T((3, 4, 5)), [None, None, listed(0, -1)], T((2,))),
    aten("index_put.default", T((3, 4)), [listed(0, 1, 2), listed(3, 3, 0)], T((3,))),
    aten("index_put.default", T((3, 4, 5)), [listed(0, 2), None, listed(1, 1)], T((2, 4))),
    aten("index_put.default", T((5,)), [T((), I32, values=(2,))], T(())),
    aten("index_put.default", T((5, 3)), [listed()], T((0, 3))),
    aten("index_put.default", T((5, 3), BOOL), [listed()], T((0, 3), BOOL)),
    aten("index_put.default", T((4, 3), limit=(9, 3)), [listed(3)], T((1, 3))),
    *(aten("index_put.default", of(d, 3, 4), [T((3, 4), BOOL)], T((), d, low=1)) for d in EVERY),
    aten("index_put.default", T((3, 4, 5)), [T((3,), BOOL)], T((1,))),
    aten("index_put.default", T((3, 4, 5)), [None, T((4, 5), BOOL)], T(())),
    *(aten("scatter.src", of(d, 3, 5), 1, T((2, 2), I32, values=(4, 0, 1, 3)), of(d, 2, 3)) for d in EVERY),
    aten("scatter.src", T((3, 5)), 0, T((1, 5), I32, values=(2, 0, 1, 2, 0)), T((2, 5))),
    aten("scatter.src", T((5,)), -1, listed(4, 2), T((3,))),
    *(aten("scatter.value", of(d, 3, 5), 1, T((3, 1), I32, values=(4, 0, 1)), 1) for d in EVERY),
    aten("scatter.value", T((3, 5)), 0, T((0, 5), I32), 2.5),
    aten("scatter.value", T((3, 5)), 0, T((2, 2), I32, values=(0, 2, 2, 0)), -2.5),
]  # fmt: skip

BEYOND = [  # PyTorch refuses these: reads take the nearest element, writes are dropped
    aten("index.Tensor", T((4, 3)), [listed(9, -9, 2**31 - 1)], reference=lambda x, i: x[[3, 0, 3]]),
    aten("gather.default", T((3,)), 0, listed(7, -1), reference=lambda x, d, i: x[[2, 2]]),
    aten("index_put.default", T((4,)), [listed(9, 1, -9)], T((3,)), reference=lambda x, i, v: _with(x, 1, v[1])),
    aten("scatter.value", T((4,), BOOL), 0, listed(-1, 4), 1, reference=lambda x, d, i, v: _with(x, 3, True)),
]


def _with(x: torch.Tensor, at: int, value: Any) -> torch.Tensor:
    y = x.clone()
    y[at] = value
    return y


CASES = [*GATHERED, *TAKEN, *WRITTEN, *BEYOND]

BENCHMARKS = [  # at real sizes
    aten("gather.default", T((4096, 4096)), 1, at(4096, 4096, 1024)),
    aten("index_select.default", T((32000, 1024)), 0, at(32000, 16384)),
    aten("index.Tensor", T((32000, 1024)), [at(32000, 16384)]),
]
BROWSER = [c for c in CASES if c.args[0].dtype in (F16, I8, BOOL)][::2]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (
            aten("index.Tensor", T((3,)), [T((3,), BOOL)]),
            "an index of bool is not supported: a mask makes a shape that depends on the data; "
            "use where, or indices of int32 or int64",
        ),
        (aten("index.Tensor", T((3,)), [None]), "1 indices do not fit [3]"),
        (aten("index.Tensor", T((0, 2)), [at(1, 2)]), "a dimension of [0, 2] has no elements to index"),
        (
            aten("index.Tensor", T((1,) * 7), [at(1, 2)] * 7),
            "7 index tensors are more than the 6 that one dispatch can bind",
        ),
        (aten("gather.default", T((2, 3)), 1, at(3, 3, 1)), "an index of [3, 1] does not fit dimension 1 of [2, 3]"),
        (aten("gather.default", T((2, 0)), 1, at(1, 2, 1)), "dimension 1 of [2, 0] has no elements to index"),
        (aten("index_select.default", T((2, 3)), 1, at(3, 1, 1)), "index_select takes a vector of indices, not [1, 1]"),
        (aten("index_put.default", T((3,)), [at(3, 2)], T((3,))), "shapes [2], [3] do not broadcast"),
        (aten("index_put.default", T((3,)), [at(3, 1)], T((3,))), "values of [3] do not fit the indexed [1]"),
        (
            aten("index_put.default", T((3,)), [T((2,), BOOL)], T(())),
            "a mask of [2] does not fit [3] from dimension 0 on",
        ),
        (
            aten("scatter.src", T((3, 3)), 1, at(3, 2, 2), T((2, 1))),
            "an index of [2, 2] exceeds a source of [2, 1]",
        ),
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
