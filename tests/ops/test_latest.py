"""Latest tokens of sequences: they replace missing tokens and persist for the next run; unused rows change nothing."""

from __future__ import annotations

import torch
from tests.oracle import Case, T

from ptegpu.dtypes import DType
from ptegpu.ops.latest import FILL, KEEP

I32 = DType.I32
ROWS = (2, 9, 0, 4, 1, 0, -1, 3, 2, 10)


def filled(tokens: torch.Tensor, rows: torch.Tensor, latest: torch.Tensor) -> torch.Tensor:
    values = [int(latest[s]) if 0 <= s < len(latest) else 0 for s in rows[:, 0].tolist()]
    return torch.where(tokens < 0, torch.tensor([values]), tokens)


def updated(tokens: torch.Tensor, rows: torch.Tensor, sampled: torch.Tensor, latest: torch.Tensor) -> torch.Tensor:
    for token, row in zip(tokens.tolist(), sampled.tolist()):
        if rows[row, 0] >= 0:
            latest[rows[row, 0]] = token
    return torch.zeros(1, dtype=tokens.dtype)


def vector(*values: int, limit: int | None = None) -> T:
    return T((len(values),), I32, values=values, limit=limit and (limit,))


CASES = [
    Case(
        FILL,
        (T((1, 5), I32, values=(7, -1, -1, -1, -1)), T((5, 2), I32, values=ROWS), vector(11, 12, 13)),
        filled,
    ),
    Case(
        FILL,
        (T((1, 2), I32, values=(-1, 5), limit=(1, 8)), T((2, 2), I32, values=(1, 0, 0, 3), limit=(8, 2)), vector(4, 9)),
        filled,
    ),
    Case(
        KEEP,
        (vector(31, 32, 33), T((5, 2), I32, values=ROWS), vector(3, 1, 0), vector(11, 12, 13)),
        updated,
        mutated=(3,),
    ),
]
