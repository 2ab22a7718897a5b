"""Tensors from scalars: every dtype, sizes of zero and one, ranges in ints and floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracle import Case, S, T, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, ShapeError

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
EVERY = {F32: torch.float32, F16: torch.float16, I32: torch.int64, I8: torch.int8, U8: torch.uint8, BOOL: torch.bool}


def create(name: str, dtype: DType, *args: Any) -> Case:
    """Return a case as exported: dtype, layout, device and pinning are None; the declared output has the dtype."""
    function = getattr(torch, name.partition(".")[0])
    empty = (None,) * 4
    return Case(f"aten.{name}", (*args, *empty), lambda *a: function(*a[:-4], dtype=EVERY[dtype]), out=dtype)


CASES = [
    *(create("full.default", d, [3, 5], 1) for d in EVERY),
    *(create("full.default", F32, shape, 2.5) for shape in ([], [1], [0], [2, 0], [1025], [2, 1, 2, 1, 2, 1, 2, 2])),
    *(create("full.default", F32, [3], value) for value in (math.inf, -math.inf, math.nan, True, -7)),
    create("full.default", I32, [3], 2.7),
    create("full.default", I32, [3], -(2**31)),
    create("full.default", BOOL, [3], 2.0),
    *(create("full_like.default", d, T((2, 3), BOOL), 3) for d in EVERY),
    *(create(f"{name}.default", d, [5]) for name in ("zeros", "ones") for d in EVERY),
    *(create(f"{name}_like.default", d, T((7,))) for name in ("zeros", "ones") for d in (F32, I32, U8)),
    create("zeros_like.default", BOOL, T((0, 5), F16)),
    create("zeros_like.default", F32, T((2, 3), limit=(5, 7))),
    *(create("scalar_tensor.default", d, 1) for d in EVERY),
    create("scalar_tensor.default", F32, -0.1),
    Case("aten.empty.memory_format", ([2, 3],), torch.zeros),
    Case("aten.empty_like.default", (T((2, 3), F16),), torch.zeros_like),
    Case("aten.fill.Scalar", (T((2, 3), F16), 1.5)),
    Case("aten.fill.Tensor", (T((2, 3), I32), T((), F32, values=(2.5,)))),
    Case("aten.fill.Tensor", (T((2, 3)), T((), F32, values=(2.5,)))),
    *(create("arange.start_step", I32, *args)
      for args in ((0, 10, 1), (2, 11, 3), (5, -6, -2), (3, 3, 1), (0.0, 5.5, 1), (0, 1030, 1))),
    *(create("arange.start_step", F32, *args)
      for args in ((0, 1, 0.3), (-1.5, 5, 1), (5, 0, -1.5), (2, 2.0, 1), (0, 5.5, 1))),
    create("arange.start_step", F16, 0, 9, 2),
    create("arange.start_step", I32, 0, S(7), 1),
    create("arange.default", I32, 6),
    create("arange.default", F32, 2.5),
]  # fmt: skip

BENCHMARKS = [create("full.default", F32, [4096, 4096], 1.5)]  # at a real size
BROWSER = [c for c in CASES if c.out in (F16, I8, BOOL)][::2]


@pytest.mark.parametrize(
    ("case", "error", "text"),
    [
        (create("full.default", F32, [2, -1], 1), ShapeError, "aten.full.default: [2, -1] is not a shape"),
        (
            create("full.default", I32, [2], 2**31),
            InvalidProgram,
            "aten.full.default: the scalar 2147483648 does not fit int32",
        ),
        (
            create("arange.start_step", I32, 0, 5, -1),
            ShapeError,
            "aten.arange.start_step: arange cannot go from 0 to 5 in steps of -1",
        ),
        (
            Case("aten.fill.Tensor", (T((2,)), T((2,)))),
            ShapeError,
            "aten.fill.Tensor: the fill value has shape [2]; it must be a scalar",
        ),
    ],
    ids=str,
)
def test_refusals(case: Case, error: type[Exception], text: str) -> None:
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros(2, (case.out or F32).numpy)])
    with pytest.raises(error) as raised:
        plan_of(graph, device().target)
    assert str(raised.value) == text
