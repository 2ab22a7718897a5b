"""Views: every shape rule, and casts between all dtypes of the GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracle import Case, S, T, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
TORCH = {F32: torch.float32, F16: torch.float16, I32: torch.int32, I8: torch.int8, U8: torch.uint8, BOOL: torch.bool}
EMPTY = (None, None, None, None, False, None)  # dtype, layout, device, pinning, non_blocking, memory format
ODD = {  # values at the edges of conversions
    F32: (-1.9, 1.9, 0.5, -0.5, 0.0, -0.0, 100.7, 1e-30, 3.0),
    I32: (-128, 127, 0, 300, -300, 65536, 1, 255, -1),
}


def cast(source: T, to: DType) -> Case:
    return Case("aten._to_copy.default", (source, *EMPTY), lambda x, *_: x.to(TORCH[to]), out=to)


def aten(name: str, *args: Any, **more: Any) -> Case:
    return Case(f"aten.{name}", args, **more)


CASES = [
    *(cast(T((3, 7), source, low=0 if U8 in (source, to) else -9, high=9), to) for source in TORCH for to in TORCH),
    *(cast(T((9,), F32, values=ODD[F32]), to) for to in (I32, I8, BOOL, F16)),
    *(cast(T((9,), I32, values=ODD[I32]), to) for to in (I8, U8, BOOL, F32)),
    cast(T((4,), values=(math.nan, math.inf, -math.inf, 0.0)), BOOL),
    cast(T((4,), values=(math.nan, math.inf, -math.inf, 1e6)), F16),
    *(cast(T(shape, I8), F32) for shape in ((), (1,), (0,), (1027,))),
    cast(T((2, 3), F16, limit=(5, 9)), I32),
    Case("dim_order_ops._to_dim_order_copy.default", (T((5,), I32), *EMPTY), lambda x, *_: x.float(), out=F32),
    Case("dim_order_ops._clone_dim_order.default", (T((2, 3)), False, [0, 1]), lambda x, *_: x.clone()),
    *(aten("view_copy.default", T((2, 3, 4), d), size)
      for d in (F32, BOOL) for size in ([6, 4], [24], [-1, 3], [2, 1, -1])),
    aten("view_copy.default", T(()), [1, 1]),
    aten("view_copy.default", T((0, 3)), [3, 0]),
    aten("view_copy.default", T((4, 3), limit=(8, 3)), [S(2), -1]),
    aten("squeeze_copy.dims", T((1, 3, 1)), [0, 1, -1]),
    aten("squeeze_copy.dim", T((1, 3, 1)), -1),
    aten("squeeze_copy.dim", T((2, 3)), 0),
    aten("squeeze_copy.default", T((1, 3, 1, 2, 1))),
    *(aten("unsqueeze_copy.default", T((2, 3)), dim) for dim in (0, 1, 2, -1, -3)),
    aten("unsqueeze_copy.default", T(()), 0),
    aten("clone.default", T((2, 3), F16), None),
    aten("alias_copy.default", T((2, 3), I8, -99, 99)),
    aten("detach_copy.default", T((2, 3))),
    aten("lift_fresh_copy.default", T((2, 3))),
    Case("et_vk.prepack.default", (T((2, 3)),), torch.clone),
]  # fmt: skip
BROWSER = CASES[:36:2]


def test_a_view_costs_nothing() -> None:
    case = aten("view_copy.default", T((2, 3)), [6])
    graph, _ = graph_of(case, {id(case.args[0]): np.zeros((2, 3), np.float32)}, [np.zeros(6, np.float32)])
    assert plan_of(graph, device().target).dispatches == ()


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (aten("view_copy.default", T((2, 3)), [4]), "aten.view_copy.default: [2, 3] cannot be viewed as [4]"),
        (aten("view_copy.default", T((2, 3)), [-1, 4]), "aten.view_copy.default: [2, 3] cannot be viewed as [-1, 4]"),
        (aten("view_copy.default", T((2, 3)), [-1, -1]), "aten.view_copy.default: [-1, -1] is not a shape"),
        (aten("squeeze_copy.dim", T((2, 3)), 2), "aten.squeeze_copy.dim: dimension 2 is out of range for rank 2"),
    ],
    ids=str,
)
def test_refusals(case: Case, text: str) -> None:
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros(4, np.float32)])
    with pytest.raises(ShapeError) as raised:
        plan_of(graph, device().target)
    assert str(raised.value) == text
