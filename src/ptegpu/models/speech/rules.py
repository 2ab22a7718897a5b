"""Whisper's rules for the next token, and the times that a window's tokens mark. Plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..parts import Speech


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Return log-probabilities in float64; -inf stays."""
    shifted = scores.astype(np.float64) - scores.max()
    return shifted - np.log(np.exp(shifted).sum())  # type: ignore[no-any-return]


class Rules:
    """Whisper's rules. With `timestamps`, these come first, then in pairs, and never go back."""

    def __init__(self, card: Speech, timestamps: bool) -> None:
        self.card, self.timestamps = card, timestamps
        self._never = list(card.suppressed)
        self._never_first = list(card.suppressed_first)

    def scores(self, logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits (V) after a window's tokens, with -inf for forbidden tokens."""
        scores = logits.astype(np.float32)
        if not tokens:
            scores[self._never_first] = -np.inf
        scores[self._never] = -np.inf
        if self.timestamps:
            self._apply_timestamps(scores, tokens)
        return scores

    def _apply_timestamps(self, scores: np.ndarray, tokens: Sequence[int]) -> None:
        card, zero = self.card, self.card.first_timestamp
        assert card.no_timestamps is not None
        scores[card.no_timestamps] = -np.inf
        ends_in_time = bool(tokens) and tokens[-1] >= zero
        time_before = len(tokens) < 2 or tokens[-2] >= zero
        if ends_in_time and time_before:
            scores[zero:] = -np.inf
        elif ends_in_time:
            scores[: card.end] = -np.inf
        times = [t for t in tokens if t >= zero]
        if times:
            scores[zero : times[-1] + (0 if ends_in_time and not time_before else 1)] = -np.inf
        if not tokens:
            scores[:zero] = -np.inf
            if card.initial is not None:
                scores[zero + card.initial + 1 :] = -np.inf
        logprobs = log_softmax(scores)
        any_time = np.logaddexp.reduce(logprobs[zero:]) if zero < len(logprobs) else -np.inf
        if any_time > logprobs[:zero].max():
            scores[:zero] = -np.inf


class TimedTokens(NamedTuple):
    """Some of a window's tokens, and their start and end in timestamps of the window."""

    start: int
    end: int
    tokens: list[int]


def cut(tokens: list[int], frames: int, card: Speech) -> tuple[list[TimedTokens], int]:
    """Split a window's tokens at pairs of timestamps; return the parts and the frame at which the next window begins.

    What follows the last pair is decoded again in the next window, unless the tokens end in a single timestamp: then
    nothing is said after it.
    """
    zero = card.first_timestamp
    is_time = [t >= zero for t in tokens]
    ends = [k + 1 for k in range(len(tokens) - 1) if is_time[k] and is_time[k + 1]]
    if not ends:
        marks = [t - zero for t in tokens if t >= zero]
        return [TimedTokens(0, marks[-1] if marks and marks[-1] else frames // 2, tokens)], frames
    single = is_time[-2:] == [False, True]
    bounds = [0, *ends, *([len(tokens)] if single else [])]
    parts = [TimedTokens(tokens[a] - zero, tokens[b - 1] - zero, tokens[a:b]) for a, b in pairwise(bounds)]
    return parts, frames if single else 2 * (tokens[ends[-1] - 1] - zero)
