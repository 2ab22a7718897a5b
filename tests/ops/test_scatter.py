"""Scatter: zero, one and many values per element, any dimension, every reduction and dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, device, graph_of, plan_of

import ptegpu
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

BEYOND = [  # PyTorch refuses these; out-of-range writes are dropped
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
BROWSER = CASES[1::3]


@pytest.mark.parametrize("case", CASES[::9], ids=str)
def test_long_rows_in_little_memory(case: Case) -> None:
    check(case, max_shared_bytes=64, max_invocations=32)


class Attention(torch.nn.Module):
    """A layer of a graph attention network: a softmax over the edges into each node."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.score = torch.nn.Linear(4, 4), torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:  # x (nodes, 4), edges (2, count)
        source, end = edges[0], edges[1]
        h = self.linear(x)
        score = self.score(torch.cat([h[source], h[end]], 1)).squeeze(1)
        top = torch.full((x.shape[0],), -INF).scatter_reduce(0, end, score, "amax")
        weight = (score - top[end]).exp()
        total = torch.zeros(x.shape[0]).scatter_add(0, end, weight)
        return torch.zeros_like(h).index_add(0, end, (weight / total[end])[:, None] * h[source])


class Experts(torch.nn.Module):
    """A mixture of experts: tokens are sorted by expert and the results summed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = torch.nn.Linear(4, 3), torch.nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (tokens, 4)
        share, expert = self.gate(x).softmax(-1).topk(2)
        order = expert.reshape(-1).argsort(stable=True)
        token = order // 2
        result = torch.bmm(x[token][:, None], self.weight[expert.reshape(-1)[order]])[:, 0]
        return torch.zeros_like(x).index_add(0, token, result * share.reshape(-1)[order][:, None])


class Peaks(torch.nn.Module):
    """The decoder of a detector: the peaks of heat maps and the offsets regressed there."""

    def forward(
        self, heat: torch.Tensor, offset: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:  # (B, C, H, W), (B, 2, H, W)
        _, _, height, width = heat.shape
        peaks = heat * (torch.nn.functional.max_pool2d(heat, 3, 1, 1) == heat).float()
        score, place = peaks.flatten(1).topk(4)
        kind, at = place // (height * width), place % (height * width)
        shifts = offset.flatten(2).transpose(1, 2).gather(1, at[..., None].expand(-1, -1, 2))
        return score, kind, (at % width).float() + shifts[..., 0], (at // width).float() + shifts[..., 1]


class Overlap(torch.nn.Module):
    """Overlap-add of a signal's windowed frames."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 40)
        frames = x.unfold(1, 16, 8) * torch.hann_window(16)
        return torch.nn.functional.fold(frames.transpose(1, 2), (1, 40), (1, 16), stride=(1, 8))


EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 3, 3]])
MODELS = [
    (Attention, lambda: (torch.randn(5, 4), EDGES)),
    (Experts, lambda: (torch.randn(6, 4),)),
    (Peaks, lambda: (torch.rand(1, 3, 5, 5), torch.rand(1, 2, 5, 5))),
    (Overlap, lambda: (torch.randn(2, 40),)),
]


@pytest.mark.parametrize(("model", "make_inputs"), MODELS, ids=lambda x: x.__name__)
def test_models_of_graphs_experts_detection_and_audio_are_one_plan(
    model: type[torch.nn.Module], make_inputs: Callable[[], tuple[torch.Tensor, ...]]
) -> None:
    torch.manual_seed(0)
    module, inputs = model().eval(), make_inputs()
    from tests.exporting import export  # benchmarks import this file without ExecuTorch

    with ptegpu.load(export(module, inputs)) as program:
        got, want = program(*inputs), module(*inputs)
        assert 1 == len(program.method("forward").plans)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_graph_may_have_any_number_of_nodes_and_edges() -> None:
    torch.manual_seed(0)
    module = Attention().eval()
    dims = ({0: torch.export.Dim("nodes", max=50)}, {1: torch.export.Dim("edges", max=3000)})
    from tests.exporting import export

    with ptegpu.load(export(module, (torch.randn(5, 4), EDGES), dynamic_shapes=dims)) as program:
        for nodes, edges in ((5, 7), (50, 3000), (2, 3), (9, 40)):
            ends = torch.cat([torch.arange(nodes), torch.randint(0, nodes, (max(edges - nodes, 0),))])
            inputs = torch.randn(nodes, 4), torch.stack([ends.flip(0), ends])
            torch.testing.assert_close(program(*inputs), module(*inputs), atol=1e-5, rtol=1e-5)


REFUSED = [
    (
        aten("scatter_add.default", T((3, 3)), 1, at(3, 2, 2), T((2, 1))),
        "an index of [2, 2] exceeds a source of [2, 1]",
    ),
    (
        aten("scatter_add.default", T((2, 3)), 1, at(3, 3, 1), T((3, 1))),
        "an index of [3, 1] does not fit dimension 1 of [2, 3]",
    ),
    (
        aten("scatter_reduce.two", T((3,)), 0, at(3, 2), T((2,)), "median"),
        "invalid reduction 'median': expected one of sum, prod, mean, amax, amin, add, multiply",
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
