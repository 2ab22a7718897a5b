"""Latest tokens of sequences: they replace missing tokens and persist for the next run; unused rows change nothing."""

from __future__ import annotations

import numpy as np
import torch
from tests.oracle import Case, T

from ptegpu.dtypes import DType
from ptegpu.models.text.sampling import Sampling
from ptegpu.ops.latest import FILL
from ptegpu.ops.sample import SAMPLE_ROWS

I32 = DType.I32
ROWS = (2, 9, 0, 4, 1, 0, -1, 3, 2, 10)


def filled(tokens: torch.Tensor, rows: torch.Tensor, latest: torch.Tensor) -> torch.Tensor:
    values = [int(latest[s]) if 0 <= s < len(latest) else 0 for s in rows[:, 0].tolist()]
    return torch.where(tokens < 0, torch.tensor([values]), tokens)


def sampled(
    logits: torch.Tensor, settings: torch.Tensor, seen: torch.Tensor, latest: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs, tokens = logits[0].log_softmax(-1).max(-1)
    for token, sequence in zip(tokens.tolist(), settings[:, -1].tolist()):
        if 0 <= sequence < len(latest):
            latest[sequence] = token
    return tokens, logprobs


def greedy(*sequences: int) -> T:
    words = np.frombuffer(b"".join(Sampling(seed=0).row(0, s) for s in sequences), np.int32)
    return T((len(sequences), 10), I32, values=tuple(words.tolist()))


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
        SAMPLE_ROWS,
        (T((1, 4, 700)), greedy(2, -1, 3, 0), T((4, 0), I32), vector(11, 12, 13)),
        sampled,
        mutated=(3,),
    ),
]
