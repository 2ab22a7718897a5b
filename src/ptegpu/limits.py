"""Limits on the resources of a program, and the budget that tracks their use.

Code that allocates, repeats or waits on behalf of a file calls these first: `spend` adds to a count, `left` returns the
memory that is free, `tick` checks the time. They use the budget of the enclosing block (`Budget.spending`), which
`load` and every call open. Outside of such a block, nothing is counted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Literal

from .errors import InvalidInput, LimitExceeded

Name = Literal["memory", "nodes", "items", "plans", "pipelines", "instructions", "seconds"]

_UNITS = {
    "memory": "bytes of temporaries and states",
    "nodes": "operator calls",
    "items": "items of lists",
    "plans": "plans",
    "pipelines": "compiled kernels",
    "instructions": "instructions",
}
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds for a program. No real model comes near the defaults; lower them for files that you do not trust."""

    memory: int = 1 << 38  # bytes of temporaries and states, on GPU and host, and of weights beyond 4 × files
    folded: int | None = None  # bytes computed from constants at load instead of in each call; None: 32 MiB + 4 × files
    nodes: int = 16_384  # operator calls, delegates inlined
    items: int = 1_000_000  # in the list arguments of operator calls, in total
    plans: int = 512  # one per method and stretch for the GPU
    pipelines: int = 512  # compiled kernels kept, the most recently used; a run cannot need more
    instructions: int = 1_000_000  # in one call
    seconds: float = 3600.0  # for loading, and for each call

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            kinds = (int, float) if f.name == "seconds" else (int, type(None)) if f.name == "folded" else (int,)
            if not isinstance(value, kinds) or isinstance(value, bool) or not (value is None or value >= 0):
                raise InvalidInput(f"invalid limit {f.name}: expected a number that is not negative, not {value!r}")

    @staticmethod
    def parse(texts: list[str]) -> Limits:
        """Parse the limits of a command line: ["memory=2G", "seconds=10"]."""
        values: dict[str, int | float] = {}
        names = [f.name for f in fields(Limits)]
        for text in texts:
            match = re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?)([KMGT]?)", text)
            if match is None or match[1] not in names:
                raise InvalidInput(
                    f"invalid limit {text!r}: expected NAME=NUMBER, such as memory=2G; names are {', '.join(names)}"
                )
            value = float(match[2]) * _SUFFIXES[match[3]]
            values[match[1]] = value if match[1] == "seconds" else int(value)
        return Limits(**values)  # type: ignore[arg-type]


class Budget:
    """The limits of one program and the resources it uses."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.spent = {"nodes": 0, "items": 0, "plans": 0}
        self.foldable = _FOLDABLE if self.limits.folded is None else self.limits.folded  # bytes, the rest
        self.left = self.limits.memory  # bytes that are free
        self.read = self.copied = 0  # bytes of its files, and of weights made from them
        self._held: dict[object, int] = {}
        self._kept: dict[object, tuple[int, Callable[[], None]]] = {}  # compiled kernels, least recently used first

    def copy(self) -> Budget:
        """Return a new budget with the same limits, charged only for the files that were read."""
        budget = Budget(self.limits)
        budget.foldable, budget.read = self.foldable, self.read
        return budget

    @contextmanager
    def spending(self, label: str) -> Iterator[None]:
        """Open a block for one load or one call of the program; a nested block is part of the outer one."""
        outer = _current.get()
        new = outer is None or outer[0] is not self
        try:
            _current.set((self, clock() + self.limits.seconds, label) if new else outer)
            yield
        finally:
            _current.set(outer)  # no token: an interrupt after the first `set` would lose it

    def hold_constants(self, nbytes: int) -> None:
        """Count `nbytes` of weights in total, which exceed the files if tensors overlap."""
        self.hold("constants", max(0, nbytes - _PER_BYTE * self.read), "the weights")

    def hold(self, owner: object, nbytes: int, label: str) -> None:
        """Set the bytes that `owner` holds; raise LimitExceeded if the total is too large."""
        left = self.left + self._held.get(owner, 0) - nbytes
        if left < 0:
            raise exceeded("memory", self.limits.memory - left, self.limits.memory, label)
        self.left, self._held[owner] = left, nbytes

    def keep(self, owner: object, count: int, drop: Callable[[], None]) -> None:
        """Reserve `count` compiled kernels for `owner`. If there are too many, `drop` the least recently used."""
        self._kept.pop(owner, None)
        if count > self.limits.pipelines:
            raise exceeded("pipelines", count, self.limits.pipelines, "it")
        while count + sum(n for n, _ in self._kept.values()) > self.limits.pipelines:
            self._kept.pop(next(iter(self._kept)))[1]()
        self._kept[owner] = count, drop


_FOLDABLE, _PER_BYTE = 32 << 20, 4  # bytes that may be folded by default, and more of them per byte of the files
_current: ContextVar[tuple[Budget, float, str] | None] = ContextVar("budget", default=None)  # budget, deadline, label
clock = time.monotonic


def current() -> Budget | None:
    """Return the budget of the enclosing block."""
    block = _current.get()
    return block and block[0]


def tick() -> None:
    """Raise LimitExceeded if the current load or call has taken too long."""
    block = _current.get()
    if block is not None and clock() > block[1]:
        raise exceeded("seconds", 0, block[0].limits.seconds, block[2])


def spend(name: Literal["nodes", "items", "plans"], amount: int, label: str) -> None:
    """Add to a count of the program; raise LimitExceeded if it is too large."""
    tick()
    if (budget := current()) is not None:
        spent = budget.spent[name] = budget.spent[name] + amount
        most = getattr(budget.limits, name)
        if spent > most:
            raise exceeded(name, spent, most, label)


def has_read(nbytes: int) -> None:
    """Count `nbytes` of a file of the program."""
    if (budget := current()) is not None:
        budget.read += nbytes
        if budget.limits.folded is None:
            budget.foldable += _PER_BYTE * nbytes


def may_fold(nbytes: int) -> bool:
    """Return whether `nbytes` may be computed from constants at load, and count them."""
    tick()
    if (budget := current()) is None:
        return True
    fits = nbytes <= budget.foldable
    budget.foldable -= nbytes if fits else 0
    return fits


def copying(nbytes: int) -> None:
    """Reserve `nbytes` for derived weights."""
    if (budget := current()) is not None:
        budget.copied += nbytes
        budget.hold_constants(budget.copied)


def left() -> int:
    """Return the bytes of memory that the program may still use."""
    return Limits().memory if (budget := current()) is None else budget.left


def hold(owner: object, nbytes: int, label: str) -> None:
    """See `Budget.hold`."""
    if (budget := current()) is not None:
        budget.hold(owner, nbytes, label)


def exceeded(name: Name, amount: float, most: float, label: str) -> LimitExceeded:
    """Return the error for an exceeded limit."""
    if name == "seconds":
        needs = f"{label} took more than {most:g} seconds"
    else:
        needs = f"{label} needs {amount:,} {_UNITS[name]}, {most:,} are allowed"
    return LimitExceeded(f"{needs}; where you trust the file, load it with limits=Limits({name}=…) or --limit {name}=…")
