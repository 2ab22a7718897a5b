"""Reductions: every axis, every way to divide a row among lanes, both ways to combine lanes, partial results."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F16, I32, BOOL, U8, I8 = DType.F16, DType.I32, DType.BOOL, DType.U8, DType.I8
INF, NAN = math.inf, math.nan

total = partial(Case, "aten.sum.dim_IntList")
SUMS = [
    *(total((T((2, 3, 4, 5)), list(dims), keep)) for dims, keep in [
        ((0,), False), ((1,), True), ((2,), False), ((3,), False), ((-1,), True),
        ((0, 2), True), ((1, 3), False), ((3, 0), False), ((0, 1, 2, 3), True), ((), False),
    ]),
    total((T((3, 1, 5)), [1], False)),
    total((T((7,)), None, False)),
    total((T(()), [0], False)),
    total((T(()), [], True)),
    total((T((2, 1, 3, 2, 1, 2, 3, 2)), [0, 3, 6], False)),  # kept and reduced dimensions alternate
    total((T((2, 2, 2, 2, 2, 2, 2, 2)), [1, 3, 5, 7], False)),
    total((T((0, 3)), [0], False)),
    total((T((3, 0)), [0], False)),
    total((T((5, 3), F16), [1], False)),
    total((T((3, 8), F16), [1], True)),
    total((T((3, 8), F16), [0], True)),
    total((T((5, 3), I32, -9, 9), [0], False)),
    total((T((5, 8), BOOL), [1], False)),
    total((T((5, 3), BOOL), [0], False)),
    total((T((5, 3), U8, 0, 255), [1], False)),
    total((T((5, 12), I8, -128, 127), [1], False)),
    Case("aten.sum.default", (T((3, 5)),)),
    Case("aten.sum.default", (T((4,), BOOL),)),
    Case("aten.sum.default", (T((0,)),)),
]  # fmt: skip

LONG_WITH_NAN = T((2, 65536), values=tuple(NAN if k in (40000, 50000) else float(k % 50) for k in range(2 * 65536)))
TALL_WITH_NAN = T((4999, 4), values=tuple(NAN if k in (16001, 18001) else float(k % 50) for k in range(4 * 4999)))
# Rows of 1, 8, 32, 64 and 256 lanes and columns of 1, 8, 32 and 64, aligned to 4 and not; split reductions.
LENGTHS = [
    *(total((T((rows, n)), [1], False)) for rows, n in [
        (300, 3), (259, 16), (40, 17), (33, 124), (9, 100), (10, 300), (3, 511), (3, 515), (2, 1028), (2, 4100),
        (2049, 131), (2048, 259), (2048, 516),
    ]),
    *(total((T(shape), [0], False)) for shape in [
        (3, 300), (16, 259), (17, 33), (100, 5), (33, 1, 70),
        (5, 64), (60, 40), (300, 36), (300, 8), (2, 300, 12), (100, 2, 6), (1100, 5),
    ]),
    total((T((3, 40, 33)), [1], True)),
    total((T((1, 70003)), [1], False), atol=1e-3),
    total((T((2, 70000)), [1], False), atol=1e-3),
    total((T((2, 65536)), [1], False), atol=1e-3),
    total((T((2000, 3)), [0], False)),
    total((T((4999, 8)), [0], False), atol=1e-3),
    total((T((3, 4999, 4)), [0, 1], False), atol=1e-3),
    total((T((2000, 8), F16), [0], False), atol=2e-2),
    Case("aten.sum.default", (T((300, 101)),), atol=1e-3),
    Case("aten.sum.default", (T((200, 400), I32, -1000, 1000),)),
    Case("aten.mean.default", (T((300, 401), F16),)),
    Case("aten.any.default", (T((70000,), BOOL),)),
    Case("aten.max.default", (T((70000,)),)),
    Case("aten.argmax.default", (T((70000,)), None, False)),
    Case("aten.argmin.default", (T((17001, 3)), 0, False)),
    Case("aten.min.dim", (T((2, 30011), I32, -5, 5), 1, False)),
    Case("aten.var.default", (T((30011,), low=99, high=101),)),
    Case("aten.var.dim", (T((4999, 8), low=99, high=101), [0], True, False)),
    Case("aten.any.dim", (T((4999, 8), BOOL), 0, False)),
    Case("aten.amax.default", (T((40, 8), I8, -128, 127), [0], False)),
    Case("aten.amin.default", (T((40, 8), F16), [0], True)),
    *(Case(f"aten.{name}", (LONG_WITH_NAN, 1, False)) for name in ("argmax.default", "min.dim")),
    *(Case(f"aten.{name}", (TALL_WITH_NAN, 0, False)) for name in ("argmin.default", "max.dim")),
    *(Case("aten.amax.default", (x, dims, False)) for x, dims in ((LONG_WITH_NAN, [1]), (TALL_WITH_NAN, [0]))),
    Case("aten.sum.dim_IntList", (T((2, 65536), values=(*(1.0,) * 65535, INF, *(2.0,) * 65536)), [1], False)),
    Case("aten.argmax.default", (T((5, 65536), I32, -3, 3), 1, False)),
    Case("aten.max.dim", (T((4999, 8), F16), 0, False), atol=0.0),
    Case("aten.max.dim", (T((70, 8), BOOL), 0, False)),
]  # fmt: skip

SPECIAL = T((4, 3), values=(1, NAN, 2, -INF, -INF, -INF, 3, INF, 3, -1, -1, -2))
LONGER = T((300,), values=tuple(NAN if k in (77, 200) else float(k % 50) for k in range(300)))
OTHERS = [
    Case("aten.mean.dim", (T((3, 4, 5)), [1, 2], True)),
    Case("aten.mean.dim", (T((3, 4, 5)), [0], False)),
    Case("aten.mean.dim", (T((3, 4, 5)), None, False)),
    Case("aten.mean.dim", (T((2, 3, 7, 7), F16), [2, 3], True)),
    Case("aten.mean.dim", (T((0, 3)), [0], False)),
    Case("aten.mean.default", (T((0,)),)),
    *(Case(f"aten.{name}.default", (x, dims, False)) for name in ("amax", "amin") for x, dims in [
        (T((3, 4, 5)), [0, 2]), (T((3, 5), F16), [0]), (T((3, 5), I32, -9, 9), []), (T((3, 8), BOOL), [1]),
        (T((3, 4), I8, -128, 127), [0]), (SPECIAL, [1]), (SPECIAL, [0]), (LONGER, [0]), (T((0, 3)), [1]), (T(()), []),
    ]),
    *(Case(f"aten.{name}.default", (x, dim, keep)) for name in ("argmax", "argmin") for x, dim, keep in [
        (T((3, 4, 5)), 1, False), (T((3, 4, 5)), -1, True), (T((3, 4, 5)), None, False), (T((5, 3)), None, True),
        (T((40, 33), I32, -2, 2), 0, False), (T((9, 40), I32, -2, 2), 1, False), (T((3, 8), F16), 1, False),
        (SPECIAL, 1, False), (SPECIAL, 0, True), (SPECIAL, None, False), (LONGER, 0, False), (T(()), 0, False),
        (T((5, 7), U8, 0, 3), 1, False),
    ]),
    *(Case(f"aten.{name}.dim", (x, dim, keep)) for name in ("max", "min") for x, dim, keep in [
        (T((3, 4, 5)), 1, True), (T((6, 4), F16), -1, False), (T((6, 5), I32, -2, 2), 0, False),
        (T((6, 5), BOOL), 1, False), (SPECIAL, 1, False), (T((0, 3)), 1, False), (T(()), 0, False),
    ]),
    Case("aten.max.default", (T((3, 5)),)),
    Case("aten.min.default", (T((3, 5), I32, -99, -9),)),
    Case("aten.min.default", (LONGER,)),
    Case("aten.prod.default", (T((3, 5)),)),
    Case("aten.prod.default", (T((40,), low=0.9, high=1.1),)),
    Case("aten.prod.dim_int", (T((3, 5), I32, -3, 4), 0, True)),
    Case("aten.prod.dim_int", (T((3, 5), BOOL), 1, False)),
    Case("aten.prod.dim_int", (T((3, 0)), 1, False)),
    Case("aten.prod.dim_int", (T((3, 4), values=(0.5, 0.1, -1, 0.3, 0, 1, 1, 1, 2, 2, 2, 2)), 1, False),
         lambda x, *rest: x.prod(*rest, dtype=torch.bool)),
    *(total((T((3, 4), d, values=(2, -2, 1, -1, 0, 0, 0, 0, 1, 1, 1, 1)), [1], False),
            lambda x, *rest: x.sum(*rest, dtype=torch.bool)) for d in (DType.F32, I8)),
    *(Case(f"aten.{name}.{overload}", args) for name in ("any", "all") for overload, args in [
        ("default", (T((3, 5), BOOL),)), ("default", (T((0,), BOOL),)), ("default", (T((), BOOL),)),
        ("dim", (T((5, 2), BOOL), 1, False)), ("dim", (T((2, 5), BOOL), 0, True)),
        ("dim", (T((40, 3), I32, 0, 9), 0, False)),
        ("dims", (T((2, 3, 4), BOOL), [0, 2], False)), ("dims", (T((2, 3), I32, 0, 2), [], False)),
        ("dims", (T((2, 3), BOOL), None, True)), ("dim", (SPECIAL, 1, False)), ("dim", (T((5, 4), U8, 0, 2), 1, False)),
        ("default", (T((999,), BOOL),)),
    ]),
    Case("aten.var.correction", (T((3, 4, 5)), [1, 2], None, False)),
    Case("aten.var.correction", (T((3, 4, 5)), [1], 0, True)),
    Case("aten.var.correction", (T((40, 3), low=1000, high=1001), [0], 1, False), note=" far from zero"),
    Case("aten.var.correction", (T((3, 1)), [1], 1, False)),
    Case("aten.var.correction", (T((3,)), [0], 4, False)),
    Case("aten.var.correction", (T((0,)), [0], 1, False)),
    Case("aten.var.dim", (T((3, 8), F16), [1], False, True)),
    Case("aten.var.dim", (T((3, 8)), [1], True, False)),
    Case("aten.var.default", (T((3, 8)), False)),
    Case("aten.std.correction", (T((3, 8)), [0], 2, True)),
    *(Case("aten.std.dim", (T((3, 8)), dims, True, False)) for dims in (None, [1])),
    Case("aten.std.default", (T((3, 8)), False)),
    Case("aten.var_mean.correction", (T((3, 8), F16), [1], 1, True)),
]  # fmt: skip

SCANS = [
    *(Case("aten.cumsum.default", (T((3, 4, 5)), dim)) for dim in (0, 1, 2, -1)),
    *(Case("aten.cumsum.default", (T(shape), dim)) for shape, dim in [
        ((), 0), ((0, 3), 0), ((3, 0), 0), ((33,), 0), ((2, 1024), 1), ((3, 1030, 2), 1), ((300, 2), 1),
        ((1, 2100), -1), ((40, 100), 1), ((9, 300), 1), ((9, 101), 1), ((2, 5000), 1), ((2, 5003), 1),
        ((40, 20), 0), ((1000, 9), 0), ((300, 3), 0), ((2, 300, 40), 1), ((5, 40, 3), 1),
    ]),
    Case("aten.cumsum.default", (T((3, 8), values=(1, NAN, 2, 3, 4, 5, 6, 7, *(INF, 1, -INF, 2) * 4)), 1)),
    Case("aten.cumsum.default", (T((2, 4100), F16, 0, 1e-2), 1)),
    Case("aten.cumprod.default", (T((2, 1100), low=0.99, high=1.01), 1)),
    Case("aten.cumprod.default", (T((300, 5), low=0.99, high=1.01), 0)),
    Case("aten.cumsum.default", (T((5, 40), F16), 1)),
    Case("aten.cumsum.default", (T((5, 40), I32, -9, 9), 0)),
    Case("aten.cumsum.default", (T((5, 40), BOOL), 1)),
    Case("aten.cumsum.default", (T((3, 7), U8, 0, 255), 1)),
    Case("aten.cumprod.default", (T((3, 40), low=0.8, high=1.2), 1)),
    Case("aten.cumprod.default", (T((3, 4), I32, -3, 4), 0)),
]  # fmt: skip

CASES = [*SUMS, *LENGTHS, *OTHERS, *SCANS]

BENCHMARKS = [  # at real sizes
    *(Case(f"aten.{name}", (T((16384, 1024)), [1], False)) for name in ("sum.dim_IntList", "mean.dim", "amax.default")),
    Case("aten.sum.dim_IntList", (T((1024, 16384)), [0], False)),
    Case("aten.mean.dim", (T((64, 256, 32, 32)), [2, 3], True)),
    Case("aten.sum.dim_IntList", (T((4096, 4096)), [0, 1], False)),
    Case("aten.argmax.default", (T((64, 128256)), 1, False)),
    Case("aten.argmax.default", (T((1, 128256)), 1, False)),
    Case("aten.cumsum.default", (T((4096, 4096)), 1)),
]
BROWSER = [c for c in CASES if F16 in {a.dtype for a in c.args if isinstance(a, T)}] + LENGTHS + SCANS[3:]


@pytest.mark.parametrize("case", LENGTHS[::2], ids=str)
def test_small_workgroups(case: Case) -> None:
    check(case, max_invocations=128)


def refusal(case: Case) -> str:
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((), np.float32)])
    with pytest.raises(ShapeError) as e:
        plan_of(graph, device().target)
    return str(e.value)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (total((T((2, 3)), [0, -2], False)), "a dimension occurs twice in [0, -2]"),
        (total((T((2, 3)), [2], False)), "dimension 2 is out of range for rank 2"),
        (
            Case("aten.amax.default", (T((2, 0)), [1], False)),
            "dimension 1 of [2, 0] is empty: it has no largest or smallest element",
        ),
        (
            Case("aten.argmax.default", (T((2, 0)), None)),
            "dimension 1 of [2, 0] is empty: it has no largest or smallest element",
        ),
    ],
    ids=lambda v: str(v),
)
def test_refusals(case: Case, text: str) -> None:
    assert refusal(case) == f"{case.op}: {text}"
