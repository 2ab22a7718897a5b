"""Attention over pages: rows of many sequences, each at its own position; pages in any order; unused rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check

from ptegpu.dtypes import DType
from ptegpu.kernels.attention import PAGE
from ptegpu.ops.ragged import ATTEND, ROTARY_ROWS
from ptegpu.plan.target import CLASSES

F16, F32, I32 = DType.F16, DType.F32, DType.I32
Torch = torch.Tensor


def attend(
    q: Torch, k: Torch, v: Torch, keys: Torch, values: Torch, rows: Torch, tables: Torch, single: int, scale=None
) -> Torch:
    """Attend row by row; `single` changes nothing."""
    work = q.dtype if q.dtype == torch.float64 else torch.float32
    places = [[(int(p) * PAGE + j) for p in table for j in range(PAGE)] for table in tables]
    flat = [x.view(-1, *x.shape[2:]) for x in (keys, values)]
    for s, (sequence, position) in enumerate(rows.tolist()):
        if sequence >= 0:
            flat[0][places[sequence][position]] = k[0, s].to(keys.dtype)
            flat[1][places[sequence][position]] = v[0, s].to(values.dtype)
    y = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    sharing = q.shape[2] // k.shape[2]
    for s, (sequence, position) in enumerate(rows.tolist()):
        visible = places[max(sequence, 0)][: position + 1]
        visible_keys, visible_values = (x[visible].to(work).repeat_interleave(sharing, 1) for x in flat)
        scores = torch.einsum("hd,thd->ht", q[0, s].to(work), visible_keys) * (scale or q.shape[3] ** -0.5)
        y[0, s] = torch.einsum("ht,thd->hd", scores.softmax(-1), visible_values).to(q.dtype)
    return y


def case(
    rows: list[tuple[int, int]], *, sharing: int = 2, heads: int = 2, dim: int = 8, width: int = 4, pages: int = 20,
    dtype: DType = F32, cache: DType = F32, scale: float | None = None, longest: int = 0, sequences: int = 0,
    single: int = 0,
) -> Case:  # fmt: skip
    """Return a case whose sequences use pages in random order."""
    count = sequences or max(s for s, _ in rows) + 1
    order = np.random.default_rng(0).permutation(pages)[: count * width]
    assert len(order) == count * width
    n = len(rows)

    def new(h: int) -> T:
        return T((1, n, h, dim), dtype, limit=(1, longest, h, dim) if longest else None)

    where = T((n, 2), I32, values=tuple(x for row in rows for x in row), limit=(longest, 2) if longest else None)
    tables = T((count, width), I32, values=tuple(order.tolist()))
    old = [T((pages, PAGE, heads, dim), cache) for _ in range(2)]
    args = (new(heads * sharing), new(heads), new(heads), *old, where, tables, single, scale)
    return Case(ATTEND, args, attend, mutated=(3, 4))


def turned(q: Torch, k: Torch, cos: Torch, sin: Torch, rows: Torch) -> tuple[Torch, Torch]:
    places = rows[:, 1].clamp(0, len(cos) - 1).long()
    width = cos.shape[1]

    def turn(x: Torch) -> Torch:
        head, c, s = x[..., :width], cos[places].unsqueeze(1).to(x.dtype), sin[places].unsqueeze(1).to(x.dtype)
        other = torch.cat([-head[..., width // 2 :], head[..., : width // 2]], -1)
        return torch.cat([head * c + other * s, x[..., width:]], -1)

    return turn(q), turn(k)


def turning(rows: list[tuple[int, int]], *, dim: int = 8, width: int = 0, longest: int = 0) -> Case:
    n = len(rows)
    x = [T((1, n, h, dim), limit=(1, longest, h, dim) if longest else None) for h in (4, 2)]
    where = T((n, 2), I32, values=tuple(p for row in rows for p in row), limit=(longest, 2) if longest else None)
    tables = [T((50, width or dim), low=-1.0, high=1.0) for _ in range(2)]
    return Case(ROTARY_ROWS, (*x, *tables, where), turned)


TURNED = [turning([(0, 3), (1, 49), (0, 4)]), turning([(-1, -1), (2, 77)], dim=12, width=6, longest=8)]
CASES = [
    case([(0, 0)]),
    case([(0, 0), (1, 5), (2, 63)]),
    case([(1, 30), (0, 17), (3, 0), (2, 16)], sharing=4, dim=16),
    case([(0, p) for p in range(9, 21)], longest=16, width=5),
    case([(2, p) for p in range(40)] + [(0, 31), (1, 7)], sharing=3, dim=12),
    case([(0, 5), (-1, 0), (1, 6), (-1, 3)]),
    case([(0, 50), (1, 3)], dim=64, heads=1, sharing=1, scale=0.3),
    case([(0, 50), (1, 3)], dim=20, sharing=8),
    case([(0, 33), (1, 34)], dim=8, dtype=F16, cache=F16),
    case([(0, 33), (1, 34)], dim=8, cache=F16),
    case([(0, 7), (1, 40)], dim=6, heads=2, sharing=1),
    case([(0, 500), (1, 3), (2, 255)], width=40, pages=130),
    case([(0, 0)], single=1),
    case([(1, 30), (0, 17), (3, 0), (2, 16)], sharing=4, dim=16, single=1),
    case([(0, 33), (1, 47)], dim=8, cache=F16, single=1),
    case([(0, 33), (1, 34)], dim=8, dtype=F16, cache=F16, single=1),
    case([(0, 50), (1, 3)], dim=20, sharing=10, single=1),
    case([(0, 7), (1, 40)], dim=6, heads=2, sharing=1, single=1),
    case([(0, 500), (1, 3), (2, 639)], width=40, pages=130, longest=8, single=1),
    *TURNED,
]


@pytest.mark.parametrize("each", [CASES[1], CASES[4], CASES[11], CASES[13], CASES[18]], ids=str)
def test_on_other_adapters(each: Case) -> None:
    check(each, device_class=CLASSES["software"])
    check(each, subgroups=False, f16=False)
