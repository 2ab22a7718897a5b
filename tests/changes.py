"""Wrong results made of right ones, to test what holds results to PyTorch's: every change must be refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .saved import Program


def scaled(a: np.ndarray) -> np.ndarray:
    """By a twentieth, rounded where it is ints."""
    if a.dtype.kind == "f":
        return (a.astype(np.float64) * 1.05).astype(a.dtype)
    return a if a.dtype.kind == "b" else a + np.rint(a.astype(np.float64) * 0.05).astype(a.dtype)


def shifted(a: np.ndarray) -> np.ndarray:
    """By one element."""
    return np.roll(a.reshape(-1), 1).reshape(a.shape)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"scaled": scaled, "zeroed": np.zeros_like, "shifted": shifted}


@dataclass
class Tried:
    """What came of changing results, one at a time."""

    unchanged: Counter[tuple[str, str]] = field(default_factory=Counter)  # by change and what the result is
    refused: set[str] = field(default_factory=set)  # changes
    accepted: list[str] = field(default_factory=list)  # which result, and how it was changed

    @property
    def table(self) -> dict[str, dict[str, int]]:
        """What is unchanged, by change."""
        counts = sorted(self.unchanged.items())
        return {change: {what: n for (c, what), n in counts if c == change} for change in CHANGES}


def change_all(results: Sequence[Any], compare: Callable[[Sequence[Any]], None]) -> Tried:
    """Hand every change of every array to `compare`, which must accept the results as they are."""
    compare(results)
    tried = Tried()
    for k, a in enumerate(results):
        for name, change in CHANGES.items() if isinstance(a, np.ndarray) else ():
            b = change(a)
            if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                tried.unchanged[name, _what(a, name)] += 1
                continue
            try:
                compare([*results[:k], b, *results[k + 1 :]])
                tried.accepted.append(f"result {k} {name}")
            except AssertionError:
                tried.refused.add(name)
    return tried


def change_outputs(program: Program) -> Tried:
    """Every change of every output of every call."""
    found = Tried()
    for k, call in enumerate(program.calls):
        tried = change_all(call.wanted, partial(program.compare, k))
        found.unchanged += tried.unchanged
        found.refused |= tried.refused
        found.accepted += [f"{program.name}, call {k}: {what}" for what in tried.accepted]
    return found


def _what(a: np.ndarray, change: str) -> str:
    """What an array is that a change leaves as it is."""
    if not a.size:
        return "empty"
    if not np.any(a):
        return "zeros"
    if change == "shifted":
        return "one element" if a.size == 1 else "equal elements"
    return {"b": "bools", "f": "not finite"}.get(a.dtype.kind, "small ints")
