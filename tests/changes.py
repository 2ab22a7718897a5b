"""Wrong results made from correct ones, to test comparisons with PyTorch: every change must be refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .saved import Program


def scaled(a: np.ndarray) -> np.ndarray:
    """Scale by 1.05; round ints."""
    if a.dtype.kind == "f":
        return (a.astype(np.float64) * 1.05).astype(a.dtype)
    return a if a.dtype.kind == "b" else a + np.rint(a.astype(np.float64) * 0.05).astype(a.dtype)


def shifted(a: np.ndarray) -> np.ndarray:
    """Rotate the elements by one."""
    return np.roll(a.reshape(-1), 1).reshape(a.shape)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"scaled": scaled, "zeroed": np.zeros_like, "shifted": shifted}


@dataclass
class Tried:
    """The outcomes of changing results one at a time."""

    unchanged: Counter[tuple[str, str]] = field(default_factory=Counter)  # by change and kind of result
    refused: set[str] = field(default_factory=set)  # names of changes
    accepted: list[str] = field(default_factory=list)  # a result and its change

    @property
    def table(self) -> dict[str, dict[str, int]]:
        """Return the numbers of unchanged results by change and kind."""
        counts = sorted(self.unchanged.items())
        return {change: {what: n for (c, what), n in counts if c == change} for change in CHANGES}


def change_all(results: Sequence[Any], compare: Callable[[Sequence[Any]], None]) -> Tried:
    """Pass every change of every array to `compare`, which must accept the unchanged results."""
    compare(results)
    tried = Tried()
    for k, a in enumerate(results):
        for name, change in CHANGES.items() if isinstance(a, np.ndarray) else ():
            b = change(a)
            if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                tried.unchanged[name, _kind(a, name)] += 1
                continue
            try:
                compare([*results[:k], b, *results[k + 1 :]])
                tried.accepted.append(f"result {k} {name}")
            except AssertionError:
                tried.refused.add(name)
    return tried


def change_outputs(program: Program) -> Tried:
    """Try every change of every output of every call."""
    outcomes = Tried()
    for k, call in enumerate(program.calls):
        tried = change_all(call.expected, partial(program.compare, k))
        outcomes.unchanged += tried.unchanged
        outcomes.refused |= tried.refused
        outcomes.accepted += [f"{program.name}, call {k}: {what}" for what in tried.accepted]
    return outcomes


def _kind(a: np.ndarray, change: str) -> str:
    """Name the kind of an array that a change leaves unchanged."""
    if not a.size:
        return "empty"
    if not np.any(a):
        return "zeros"
    if change == "shifted":
        return "one element" if a.size == 1 else "equal elements"
    return {"b": "bools", "f": "not finite"}.get(a.dtype.kind, "small ints")
