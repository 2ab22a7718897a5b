"""The perplexity of a text, in overlapping windows, so that every token is scored with context before it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ...errors import InvalidInput

WINDOW = 512


class Scorer(Protocol):
    """A model that returns the log-probabilities of tokens, from number `first` on, given those before."""

    def score(self, prompt: list[int], first: int = 1) -> np.ndarray: ...


class ScoredWindow(NamedTuple):
    begin: int
    first: int  # the first token to score
    end: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean negative log-probability of a text's tokens, and figures derived from it."""

    tokens: int
    scored: int  # all but the first
    windows: int
    nats: float  # mean per scored token
    nbytes: int  # of the text
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats)

    @property
    def bits_per_byte(self) -> float:
        return self.nats * self.scored / math.log(2) / self.nbytes


def windows(count: int, size: int, stride: int) -> Iterator[ScoredWindow]:
    """Yield windows of `size` tokens at a distance of `stride`. The first window that has a token scores it."""
    first = 1
    for begin in range(0, count, stride):
        end = min(begin + size, count)
        if end > first:
            yield ScoredWindow(begin, first, end)
        first = end
        if end == count:
            return


def evaluate(
    model: Scorer,
    tokens: list[int],
    nbytes: int,
    size: int = WINDOW,
    stride: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Evaluation:
    """Return the perplexity of `tokens`, of a text of `nbytes`. `progress` is called with the scored tokens and all."""
    step = max(1, size // 2) if stride is None else stride
    if size < 2 or not 1 <= step < size:
        raise InvalidInput(
            f"a window of {size} tokens with a stride of {step} does not work: 2 ≤ window, 1 ≤ stride < window"
        )
    if len(tokens) < 2:
        raise InvalidInput(f"the text has {len(tokens)} tokens, at least 2 are needed")
    started = time.perf_counter()
    total, scored, count = 0.0, 0, 0
    for window in windows(len(tokens), size, step):
        logprobs = model.score(tokens[window.begin : window.end], window.first - window.begin)
        total -= float(logprobs.astype(np.float64).sum())
        scored, count = scored + len(logprobs), count + 1
        progress(scored, len(tokens) - 1)
    return Evaluation(len(tokens), scored, count, total / scored, nbytes, time.perf_counter() - started)
