"""Which token comes next: Whisper's rules over logits, and what a window's tokens say about time. Plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..parts import Speech


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """In float64; -inf stays."""
    shifted = scores.astype(np.float64) - scores.max()
    return shifted - np.log(np.exp(shifted).sum())  # type: ignore[no-any-return]


class Rules:
    """`timestamps`: they come first, then in pairs, and never go back."""

    def __init__(self, facts: Speech, timestamps: bool) -> None:
        self.facts, self.timestamps = facts, timestamps
        self._never = list(facts.suppressed)
        self._never_first = list(facts.suppressed_first)

    def scores(self, logits: np.ndarray, made: Sequence[int]) -> np.ndarray:
        """Logits (V) after these tokens of the window, with -inf for what cannot come."""
        scores = logits.astype(np.float32)
        if not made:
            scores[self._never_first] = -np.inf
        scores[self._never] = -np.inf
        if self.timestamps:
            self._in_time(scores, made)
        return scores

    def _in_time(self, scores: np.ndarray, made: Sequence[int]) -> None:
        facts, zero = self.facts, self.facts.first_timestamp
        assert facts.no_timestamps is not None
        scores[facts.no_timestamps] = -np.inf
        last = bool(made) and made[-1] >= zero
        before = len(made) < 2 or made[-2] >= zero
        if last and before:
            scores[zero:] = -np.inf
        elif last:
            scores[: facts.end] = -np.inf
        times = [t for t in made if t >= zero]
        if times:
            scores[zero : times[-1] + (0 if last and not before else 1)] = -np.inf
        if not made:
            scores[:zero] = -np.inf
            if facts.initial is not None:
                scores[zero + facts.initial + 1 :] = -np.inf
        chances = log_softmax(scores)
        together = np.logaddexp.reduce(chances[zero:]) if zero < len(chances) else -np.inf
        if together > chances[:zero].max():
            scores[:zero] = -np.inf


class Piece(NamedTuple):
    """Some of a window's tokens, and from when to when they were said, in timestamps of the window."""

    start: int
    end: int
    tokens: list[int]


def cut(tokens: list[int], frames: int, facts: Speech) -> tuple[list[Piece], int]:
    """The pieces of a window that has so many frames of sound, and how many frames on the next window begins.

    Pairs of timestamps are where pieces end. What follows the last pair is heard again in the next window, unless one
    timestamp ends it all: nothing is said after that.
    """
    zero = facts.first_timestamp
    times = [t >= zero for t in tokens]
    ends = [k + 1 for k in range(len(tokens) - 1) if times[k] and times[k + 1]]
    if not ends:
        marks = [t - zero for t in tokens if t >= zero]
        return [Piece(0, marks[-1] if marks and marks[-1] else frames // 2, tokens)], frames
    single = times[-2:] == [False, True]
    bounds = [0, *ends, *([len(tokens)] if single else [])]
    pieces = [Piece(tokens[a] - zero, tokens[b - 1] - zero, tokens[a:b]) for a, b in pairwise(bounds)]
    return pieces, frames if single else 2 * (tokens[ends[-1] - 1] - zero)
