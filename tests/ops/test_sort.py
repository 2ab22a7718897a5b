"""Sorting: rows within one workgroup and rows that need merges, ties, NaN, every dtype, any dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.plan.target import Target

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
NAN, INF = float("nan"), float("inf")
ODD = (3.0, NAN, -0.0, INF, 0.0, -INF, NAN, 1e-42, -1e-42, 3.0, -3.0, 0.0)  # ties, subnormals and NaN
Pair = tuple[torch.Tensor, torch.Tensor]


def of(dtype: DType, *shape: int) -> T:
    """Return a tensor of few distinct values, so that many are equal."""
    return T(shape, dtype, low=0 if dtype is U8 else -3, high=4)


def first(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return (values.narrow(dim, 0, k), indices.narrow(dim, 0, k)) if x.dim() else (values, indices)


def kth(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    values, indices = torch.sort(x, dim=dim, stable=True)
    if not x.dim():
        return values, indices
    results = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return results if keepdim else (results[0].squeeze(dim), results[1].squeeze(dim))


def stable(x: T, dim: int = -1, descending: bool = False, **more: Any) -> Case:
    return Case("aten.sort.stable", (x, True, dim, descending), **more)


def topk(x: T, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, **more: Any) -> Case:
    return Case("aten.topk.default", (x, k, dim, largest, sorted), first, **more)


def kthvalue(x: T, k: int, dim: int = -1, keepdim: bool = False) -> Case:
    return Case("aten.kthvalue.default", (x, k, dim, keepdim), kth)


def middle(x: torch.Tensor, dim: int, keepdim: bool = False) -> Pair:
    """Return the median with the index of its first occurrence, also for NaN; PyTorch may return any."""
    values, _ = torch.median(x, dim, keepdim)
    around = values if keepdim or not x.dim() else values.unsqueeze(dim)
    order = torch.sort(torch.where(torch.isnan(x), -torch.inf, x) if x.is_floating_point() else x, dim=dim, stable=True)
    number = (x.shape[dim] - 1) // 2 if x.dim() else 0
    place = order.indices.narrow(dim, number, 1) if x.dim() else order.indices
    nan = torch.isnan(x)
    place = torch.where(torch.isnan(around), nan.int().argmax(dim, keepdim=x.dim() > 0), place)
    return values, place.reshape(values.shape)


def median(x: T, dim: int = -1, keepdim: bool = False) -> Case:
    return Case("aten.median.dim", (x, dim, keepdim), middle)


CASES = [
    *(stable(T((3, n)), descending=down) for n in (1, 2, 3, 8, 33, 513) for down in (False, True)),
    *(stable(of(d, 5, 9), descending=down) for d in (F32, F16, I32, I8, U8, BOOL) for down in (False, True)),
    *(stable(T((3, 4, 5)), dim, dim == 1) for dim in (0, 1, 2, -1, -3)),
    *(stable(T((len(ODD),), values=ODD), 0, down) for down in (False, True)),
    stable(T((4,), F16, values=(NAN, -1.0, INF, 1.0)), 0, True),
    stable(T((4,), I32, values=(-(2**31), 2**31 - 1, 0, -1)), 0, True),
    *(stable(of(I32, 2, n), descending=n == 2049) for n in (2048, 2049, 5000)),
    stable(of(F32, 3000, 2), 0),
    stable(of(F32, 700, 3)),
    *(stable(T(shape), dim) for shape, dim in (((), 0), ((0,), 0), ((0, 3), 1), ((3, 0), 1), ((3, 0), 0))),
    stable(T((3, 5), limit=(6, 9000))),
    stable(T((5, 3), limit=(9000, 6)), 0, True),
    Case("aten.sort.default", (T((3, 7)), 1, True)),
    Case("aten.sort.default", (T((3, 7)),)),
    *(topk(T((4, 9)), k, largest=largest) for k in (0, 1, 3, 9) for largest in (True, False)),
    *(topk(T((3, 4, 5)), 2, dim) for dim in (0, 1, 2, -2)),
    *(topk(of(d, 3, 40), 5, largest=d is not I8) for d in (F32, F16, I32, I8, U8)),
    topk(T((len(ODD),), values=ODD), 4),
    topk(T((len(ODD),), values=ODD), 4, largest=False),
    topk(of(F32, 6), 3, sorted=False),
    topk(T(()), 1, 0),
    topk(T((0, 3)), 2),
    *(topk(of(F32, 2, 9000), k) for k in (1, 7, 2048, 4000, 9000)),
    topk(of(I32, 5000, 2), 6, 0, False),
    topk(T((2, 5), limit=(4, 9000)), 2),
    *(kthvalue(of(d, 3, 7), 3, keepdim=d is I32) for d in (F32, F16, I32)),
    kthvalue(T((3, 4, 5)), 2, 1),
    kthvalue(T((3, 4, 5)), 4, -2, True),
    kthvalue(T(()), 1, 0),
    kthvalue(T((len(ODD),), values=ODD), 11, 0),
    *(median(of(d, 4, n), keepdim=n == 7) for d in (F32, F16, I32, U8) for n in (1, 6, 7)),
    *(median(T((3, 4, 5)), dim, dim == 1) for dim in (0, 1, -1)),
    median(T((3, 4), values=(1.0, NAN, -2.0, NAN, 3.0, 1.0, 2.0, 4.0, -INF, INF, 0.0, -0.0))),
    median(T(()), 0),
    median(of(F32, 2, 2500)),
    median(T((2, 5), limit=(4, 2500))),
]  # fmt: skip

BENCHMARKS = [  # at real sizes
    Case("aten.sort.default", (T((64, 4096)), -1, False)),
    Case("aten.sort.default", (T((1, 1 << 20)), -1, True)),
    Case("aten.topk.default", (T((4096, 64)), 2)),
    Case("aten.topk.default", (T((1, 128256)), 50)),
]
BROWSER = CASES[1::4]


@pytest.mark.parametrize(
    "case", [stable(of(F32, 3, 100)), stable(of(I32, 37, 3), 0, True), topk(T((2, 99)), 5)], ids=str
)
@pytest.mark.parametrize("memory", [128, 512])
def test_many_merges(case: Case, memory: int) -> None:
    """With little memory a workgroup sorts few elements, so even short rows need merges."""
    check(case, max_shared_bytes=memory, max_invocations=32)


def test_merges_take_turns_in_two_pairs_of_buffers() -> None:
    case = stable(T((1, 40000)))
    graph, _ = graph_of(
        case, {id(case.args[0]): np.zeros((1, 40000), np.float32)}, [np.zeros((1, 40000), np.float32)] * 2
    )
    graph.nodes[0].outs[1].dtype = I32
    plan = plan_of(graph, Target())
    assert 7 == len(plan.dispatches)  # 20 chunks, 5 merges, the values
    assert 4 == sum(b.name.startswith("scratch") for b in plan.buffers)


def test_topk_agrees_with_pytorch_where_no_two_are_equal() -> None:
    x = T((3, 50), values=tuple(np.random.default_rng(0).permutation(150).astype(float)))
    for largest in (True, False):
        check(Case("aten.topk.default", (x, 7, 1, largest)))


REFUSED = [
    ("topk", (T((2, 3)), 4), "k = 4 is out of range for dimension -1 of [2, 3]"),
    ("topk", (T((2, 3)), -1, 0), "k = -1 is out of range for dimension 0 of [2, 3]"),
    ("kthvalue", (T((2, 3)), 0), "k = 0 is out of range for dimension -1 of [2, 3]"),
    ("median", (T((2, 0)), 1), "dimension 1 of [2, 0] is empty and has no median"),
    ("sort", (T((2, 3)), 2), "dimension 2 is out of range for rank 2"),
]


@pytest.mark.parametrize(("name", "args", "text"), REFUSED, ids=str)
def test_refused(name: str, args: tuple[Any, ...], text: str) -> None:
    case = Case(f"aten.{name}.{'dim' if name == 'median' else 'default'}", args)
    graph, _ = graph_of(
        case, {id(args[0]): np.zeros((2, 3), np.float32)}, [np.zeros(2, np.float32), np.zeros(2, np.int64)]
    )
    with pytest.raises(ShapeError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"{case.op}: {text}"
