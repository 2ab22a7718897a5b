"""Distances between rows: every norm, batches that broadcast, widths with and without a remainder, empty tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.plan.target import Target

F32, F16 = DType.F32, DType.F16
NORMS = (0.0, 1.0, 2.0, math.inf, 3.5)


def cdist(x: T, y: T, p: float = 2.0) -> Case:
    return Case("aten._cdist_forward.default", (x, y, p, None), distances, peer=peer)


def distances(x: torch.Tensor, y: torch.Tensor, p: float, mode: int | None) -> torch.Tensor:
    """Compute f16 distances in f32, because PyTorch has none for f16 on a CPU."""
    exact = x.float() if x.dtype is torch.float16 else x
    return torch.ops.aten._cdist_forward(exact, y.to(exact.dtype), p, mode).to(x.dtype)


def peer(x: torch.Tensor, y: torch.Tensor, p: float, mode: int | None) -> torch.Tensor:
    return torch.cdist(x, y, p)


CASES = [
    *(cdist(T((5, width)), T((3, width)), p) for p in NORMS for width in (4, 7)),
    *(cdist(T((3, 8), F16), T((5, 8), F16), p) for p in (1.0, 2.0)),
    cdist(T((2, 5, 3)), T((2, 4, 3))),
    cdist(T((2, 1, 5, 4)), T((3, 4, 4)), 1.0),
    cdist(T((1, 4)), T((1, 4))),
    cdist(T((0, 4)), T((3, 4))),
    cdist(T((3, 0)), T((2, 0))),
    cdist(T((3, 1), values=(1.0, math.nan, math.inf)), T((2, 1), values=(2.0, -1.0)), 1.0),
    cdist(T((3, 4), limit=(9, 4)), T((5, 4), limit=(6, 4))),
    cdist(T((2, 3, 5), limit=(4, 9, 8)), T((2, 5, 5), limit=(4, 6, 8))),
]  # fmt: skip

BENCHMARKS = [cdist(T((1024, 64)), T((8192, 64)))]  # at a real size
BROWSER = CASES[1::3]


def test_refused() -> None:
    case = cdist(T((3, 4)), T((3, 5)))
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args[:2]}
    graph, _ = graph_of(case, arrays, [np.zeros((3, 3), np.float32)])
    with pytest.raises(ShapeError) as raised:
        plan_of(graph, Target())
    assert (
        str(raised.value)
        == "aten._cdist_forward.default: 'x2' is arg1:float32[3, 5], but must be [..., _, m] where m = 4"
    )
