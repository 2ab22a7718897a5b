"""Softmax: every dimension, every way to divide a row among lanes, rows in registers and in passes, infinities, NaN."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from tests.oracle import Case, T, check

from ptegpu.dtypes import DType

F16, I32, I8, U8, BOOL = DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
INF, NAN = math.inf, math.nan
SOFTMAX, LOG, SAFE = "aten._softmax.default", "aten._log_softmax.default", "aten._safe_softmax.default"

SPECIAL = T((6, 3), values=(-INF, -INF, -INF, 1, -INF, 2, 1, NAN, 2, 1, INF, 2, 1e30, -1e30, 0, -3e38, -3e38, -INF))
MASKED = T((2, 300), values=tuple(-INF if k < 290 else float(k % 7) for k in range(600)))


def in_f32(name: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    return getattr(torch, name)(x, dim, dtype=torch.float32)


# Pieces of only -inf, with NaN, with inf, and with values far apart.
LONG = T((4, 40964), values=tuple(
    -INF if k < 20000 else NAN if k == 41000 else INF if k == 90000 else float(k % 7) + k // 40964 * (k % 40964) / 500
    for k in range(4 * 40964)
))  # fmt: skip
TALL = T((1030, 4), values=tuple(
    -INF if k < 2000 else NAN if k == 2001 else INF if k == 3002 else float(k % 7 + k // 10) for k in range(4 * 1030)
))  # fmt: skip

CASES = [
    *(Case(name, (T((2, 3, 4, 5)), dim, False)) for name in (SOFTMAX, LOG) for dim in (0, 1, 2, 3, -1)),
    *(Case(SOFTMAX, (T(shape), -1, False)) for shape in [
        (300, 3), (3, 16), (259, 16), (70, 17), (40, 40), (9, 100), (9, 128), (5, 259), (3, 512), (3, 515), (2, 1024),
        (2, 1027), (2, 2052), (1, 4096), (1, 4100), (2, 1, 5000), (2, 8196), (2, 10241), (1,), (4,), (5, 1), (0, 3),
        (3, 0),
    ]),
    *(Case(SOFTMAX, (T(shape), 0, False)) for shape in [(3, 300), (17, 33), (100, 5), (40, 3, 3), (1, 9), (0, 3)]),
    *(Case(SOFTMAX, (T(shape), dim, False)) for shape, dim in [
        ((2049, 132), 1), ((2048, 259), 1), ((1, 40964), 1), ((3, 10243), 1), ((5, 8), 0), ((60, 12), 0), ((250, 8), 0),
        ((600, 8), 0), ((600, 6), 0), ((2, 1100, 8), 1), ((1030, 3), 0), ((2, 40, 12), 1),
    ]),
    *(Case(name, (x, dim, False)) for name in (SOFTMAX, LOG) for x, dim in [(LONG, 1), (TALL, 0)]),
    *(Case(LOG, (T(shape), dim, False)) for shape, dim in [
        ((3, 515), 1), ((2, 4100), 1), ((40, 12), 0), ((1, 41000), 1), ((1100, 4), 0),
    ]),
    *(Case(name, (T((), low=1), 0, False)) for name in (SOFTMAX, LOG)),
    *(Case(name, (T(shape, F16), dim, False)) for name in (SOFTMAX, LOG) for shape, dim in [
        ((3, 5), 1), ((3, 8), 1), ((3, 8), 0), ((3, 264), 1), ((40, 6), 0), ((1, 40964), 1), ((1030, 8), 0),
    ]),
    *(Case(name, (x, 1, False)) for name in (SOFTMAX, LOG) for x in (SPECIAL, MASKED)),
    Case(SOFTMAX, (T((4, 64), low=-1000, high=1000), 1, False)),
    Case("aten.softmax.int", (T((2, 7)), -1, None)),
    Case("aten.log_softmax.int", (T((2, 7)), 0)),
    *(Case(f"aten.{name}.int", (T(shape, d, low=0, high=6), -1), partial(in_f32, name))
      for name in ("softmax", "log_softmax") for shape in ((3, 7), (3, 8)) for d in (I32, I8, U8, BOOL)),
    Case(SAFE, (T((2, 3, 8)), -1)),
    Case(SAFE, (SPECIAL, 1)),
    Case(SAFE, (T((2, 4), values=(-INF,) * 4 + (0, 1, 2, -INF)), 1)),
    Case(SOFTMAX, (T((2, 1, 2, 1, 2, 3, 1, 2)), 5, False)),
]  # fmt: skip

BENCHMARKS = [  # at real sizes
    Case(SOFTMAX, (T((16384, 1024)), -1, False)),
    Case(SOFTMAX, (T((64, 128256)), -1, False)),
    Case(SOFTMAX, (T((16384, 2048), F16), -1, False)),
    Case(SOFTMAX, (T((1024, 16384)), 0, False)),
    Case(LOG, (T((512, 32000)), -1, False)),
]
BROWSER = [c for c in CASES if c.op in (SOFTMAX, SAFE) and (c.args[0].dtype is F16 or c.args[0].shape[-1:] > (16,))]


@pytest.mark.parametrize("case", CASES[10:40:3], ids=str)
def test_small_workgroups(case: Case) -> None:
    check(case, max_invocations=128)
