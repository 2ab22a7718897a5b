"""Values folded in where indices send them: none, one and many per place, any dimension, every reduction and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F32, F16, I32, I8, U8 = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8
NAN, INF = float("nan"), float("inf")
FOLDS = ("sum", "prod", "mean", "amax", "amin")


def aten(name: str, *args: Any, **more: Any) -> Case:
    return Case(f"aten.{name}", args, **more)


def of(dtype: DType, *shape: int) -> T:
    return T(shape, dtype, low=0 if dtype is U8 else -3, high=4)


def at(size: int, *shape: int) -> T:
    return T(shape, I32, low=0, high=size)


def signed(size: int, *shape: int) -> T:
    return T(shape, I32, low=-size, high=size)


def listed(*values: int) -> T:
    return T((len(values),), I32, values=values)


SCATTERED = [
    *(aten("scatter_add.default", T((3, 4, 5)), d, at((3, 4, 5)[d], 3, 4, 5), T((3, 4, 5))) for d in (0, 1, 2, -1)),
    *(aten("scatter_add.default", T((3, 4, 5)), 1, at(4, *shape), T((3, 9, 5))) for shape in ((2, 7, 3), (1, 1, 1))),
    *(aten("scatter_add.default", of(d, 4, 6), 0, at(4, 9, 6), of(d, 9, 6)) for d in (F32, F16, I32, I8, U8)),
    aten("scatter_add.default", T((5,)), 0, at(5, 40), T((40,))),
    aten("scatter_add.default", T(()), 0, at(1), T(())),
    aten("scatter_add.default", T((3, 4)), 0, T((0, 4), I32), T((2, 4))),
    aten("scatter_add.default", T((0, 4)), 1, T((0, 4), I32), T((0, 4))),
    aten("scatter_add.default", T((4, 3), limit=(6, 9)), 0,
         T((9, 3), I32, 0, 4, limit=(40, 9)), T((9, 3), limit=(40, 9))),
    aten("scatter_add.default", T((7, 2)), 0, at(7, 3000, 2), T((3000, 2))),
    *(aten("scatter_reduce.two", T((5, 3)), 0, at(5, 7, 3), T((7, 3)), by, own)
      for by in FOLDS for own in (True, False)),
    *(aten("scatter_reduce.two", of(d, 4, 6), 1, at(6, 4, 9), of(d, 4, 9), by, d is I32)
      for d in (F16, I32, I8) for by in ("amax", "amin", "sum")),
    aten("scatter_reduce.two", of(I32, 6), 0, at(3, 9), of(I32, 9), "mean", True),
    aten("scatter_reduce.two", of(I32, 6), 0, at(3, 9), of(I32, 9), "mean", False),
    *(aten("scatter_reduce.two", T((3,), values=(0.0, INF, -INF)), 0, listed(0, 0, 1, 2, 2),
           T((5,), values=(NAN, 2.0, 1.0, -INF, 3.0)), by, own) for by in FOLDS for own in (True, False)),
    aten("scatter_reduce.two", T((3, 4, 2)), 1, at(4, 2, 5, 1), T((3, 6, 2)), "amax", False),
    aten("scatter.reduce", T((5, 3)), 0, at(5, 7, 3), T((7, 3)), "add"),
    aten("scatter.reduce", T((5, 3)), 0, at(5, 7, 3), T((7, 3)), "multiply"),
]  # fmt: skip

SUMMED = [
    *(aten("index_put.default", of(d, 5, 3), [signed(5, 9)], of(d, 9, 3), True) for d in (F32, F16, I32, I8, U8)),
    aten("index_put.default", T((5, 3)), [signed(5, 9)], T(()), True),
    aten("index_put.default", T((5, 3)), [signed(5, 2, 4)], T((3,)), True),
    aten("index_put.default", T((5,)), [T((), I32, values=(2,))], T(()), True),
    aten("index_put.default", T((5, 3)), [listed()], T((0, 3)), True),
    aten("index_put.default", T((3, 4, 5)), [None, signed(4, 7)], T((3, 7, 5)), True),
    aten("index_put.default", T((3, 4, 5)), [None, None, signed(5, 7)], T((4, 7)), True),
    aten("index_put.default", T((3, 4, 5)), [signed(3, 7), signed(4, 7)], T((7, 5)), True),
    aten("index_put.default", T((3, 4, 5)), [None, signed(4, 6, 1), signed(5, 7)], T((3, 6, 7)), True),
    aten("index_put.default", T((3, 4, 5)), [signed(3, 7), None, signed(5, 7)], T((7, 4)), True),
    aten("index_put.default", T((2, 3, 4, 5)), [None, signed(3, 2), None, signed(5, 3, 1)], T((2, 4)), True),
    aten("index_put.default", T((4, 3), limit=(9, 3)), [at(4, 6)], T((6, 3)), True),
]

REDUCED = [
    *(aten("index_reduce.default", T((4, 5)), d, at((4, 5)[d], 7), T(((7, 5), (4, 7))[d]), by, own)
      for d in (0, 1) for by, own in (("prod", True), ("mean", False), ("amax", False), ("amin", True))),
    aten("index_reduce.default", of(I32, 4, 5), -1, at(5, 9), of(I32, 4, 9), "amax", True),
    aten("index_reduce.default", T((4, 5)), 0, listed(), T((0, 5)), "amax", False),
]  # fmt: skip

BEYOND = [  # PyTorch refuses these: what is out of range is dropped
    aten("scatter_add.default", T((4,)), 0, listed(9, -1, 4, -9), T((4,)),
         reference=lambda x, d, i, s: _plus(x, 3, s[1])),
    aten("index_put.default", T((2, 2)), [listed(1, 0, 2, -3), listed(0, 2, 0, 0)], T((4,)), True,
         reference=lambda x, i, v, a: _plus(x, (1, 0), v[0])),
]  # fmt: skip


def _plus(x: torch.Tensor, place: Any, value: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[place] += value
    return y


CASES = [*SCATTERED, *SUMMED, *REDUCED, *BEYOND]

BENCHMARKS = [  # the messages of a graph of 1,000 nodes and 10,000 edges, 64 features wide
    aten("index_put.default", T((1000, 64)), [at(1000, 10000)], T((10000, 64)), True),
    aten("scatter_add.default", T((1000, 64)), 0, at(1000, 10000, 64), T((10000, 64))),
    aten("scatter_reduce.two", T((1000, 64)), 0, at(1000, 10000, 64), T((10000, 64)), "amax"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", CASES[1::3], ids=str)
def test_without_features(case: Case) -> None:
    check(case, f16=False, subgroups=False, limits="browser")


@pytest.mark.parametrize("case", CASES[::9], ids=str)
def test_long_rows_in_little_memory(case: Case) -> None:
    check(case, max_shared_bytes=64, max_invocations=32)


REFUSED = [
    (
        aten("scatter_add.default", T((3, 3)), 1, at(3, 2, 2), T((2, 1))),
        "an index of [2, 2] takes more than a source of [2, 1] has",
    ),
    (
        aten("scatter_add.default", T((2, 3)), 1, at(3, 3, 1), T((3, 1))),
        "an index of [3, 1] does not fit dimension 1 of [2, 3]",
    ),
    (
        aten("scatter_reduce.two", T((3,)), 0, at(3, 2), T((2,)), "median"),
        "'median' is none of sum, prod, mean, amax, amin, add, multiply",
    ),
    (aten("index_put.default", T((3,)), [at(3, 1)], T((3,)), True), "values of [3] do not fit the indexed [1]"),
    (
        aten("index_reduce.default", T((3, 2)), 0, at(3, 2), T((2, 3)), "amax"),
        "an index of [2] and a source of [2, 3] do not fit dimension 0 of [3, 2]",
    ),
]


@pytest.mark.parametrize(("case", "text"), REFUSED, ids=str)
def test_refusals(case: Case, text: str) -> None:
    arguments = [a for x in case.args for a in (x if isinstance(x, list) else [x])]
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in arguments if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros(4, np.float32)])
    with pytest.raises(ShapeError) as raised:
        plan_of(graph, device().target)
    assert str(raised.value) == f"{case.op}: {text}"
