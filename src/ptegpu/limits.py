"""What a program may take, and the budget of one program that is held against it.

Whoever allocates, repeats or waits on behalf of a file asks first: `spend` adds to a count, `left` says how much memory
there is, `tick` looks at the clock. They go by the budget of the block around them (`Budget.spending`), which `load`
and every call open. Outside of one, nothing is counted.
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
    """What a program may take. No real model comes near the defaults; lower them for files that you do not trust."""

    memory: int = 1 << 38  # bytes of temporaries and states, on GPU and host, and of weights beyond 4 × files
    folded: int | None = None  # bytes computed from constants at load, the rest in each call; None: 32 MiB + 4 × files
    nodes: int = 16_384  # operator calls, delegates inlined
    items: int = 1_000_000  # in the lists that calls take, counted each time
    plans: int = 512  # methods, and stretches for the GPU beyond the first of each
    pipelines: int = 512  # compiled kernels kept; those used last are, and one run cannot need more
    instructions: int = 1_000_000  # in one call
    seconds: float = 3600.0  # of loading it, and of each call

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            kinds = (int, float) if f.name == "seconds" else (int, type(None)) if f.name == "folded" else (int,)
            if not isinstance(value, kinds) or isinstance(value, bool) or not (value is None or value >= 0):
                raise InvalidInput(f"the limit {f.name} is a number that is not negative, not {value!r}")

    @staticmethod
    def parse(texts: list[str]) -> Limits:
        """Limits as a command line gives them: ["memory=2G", "seconds=10"]."""
        found: dict[str, int | float] = {}
        names = [f.name for f in fields(Limits)]
        for text in texts:
            match = re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?)([KMGT]?)", text)
            if match is None or match[1] not in names:
                known = ", ".join(names)
                raise InvalidInput(f"{text!r} is no limit: give NAME=NUMBER, such as memory=2G; names are {known}")
            value = float(match[2]) * _SUFFIXES[match[3]]
            found[match[1]] = value if match[1] == "seconds" else int(value)
        return Limits(**found)  # type: ignore[arg-type]


class Budget:
    """The limits of one program, and what it took of them."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.spent = {"nodes": 0, "items": 0, "plans": 0}
        self.foldable = _FOLDABLE if self.limits.folded is None else self.limits.folded  # bytes that are left
        self.left = self.limits.memory  # bytes that nobody holds
        self.read = self.copied = 0  # bytes of its files, and of weights made from them
        self._held: dict[object, int] = {}
        self._kept: dict[object, tuple[int, Callable[[], None]]] = {}  # compiled kernels; used last comes last

    def copy(self) -> Budget:
        """Another one that may take as much as this, of which only files were read."""
        made = Budget(self.limits)
        made.foldable, made.read = self.foldable, self.read
        return made

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """One load or one call of the program; a block inside of another is part of that."""
        outer = _current.get()
        new = outer is None or outer[0] is not self
        try:
            _current.set((self, clock() + self.limits.seconds, what) if new else outer)
            yield
        finally:
            _current.set(outer)  # a token to reset it with would be lost where an interrupt comes after the first `set`

    def hold_constants(self, nbytes: int) -> None:
        """Weights of so many bytes in all: more than there are in the files, where tensors lie over each other."""
        self.hold("constants", max(0, nbytes - _PER_BYTE * self.read), "the weights")

    def hold(self, owner: object, nbytes: int, what: str) -> None:
        """`owner` holds so many bytes now, instead of what it held before; LimitExceeded if all are too many."""
        left = self.left + self._held.get(owner, 0) - nbytes
        if left < 0:
            raise exceeded("memory", self.limits.memory - left, self.limits.memory, what)
        self.left, self._held[owner] = left, nbytes

    def keep(self, owner: object, count: int, drop: Callable[[], None]) -> None:
        """`owner` is going to have so many compiled kernels. If all are too many, those used least recently go: `drop`
        of their owners is called."""
        self._kept.pop(owner, None)
        if count > self.limits.pipelines:
            raise exceeded("pipelines", count, self.limits.pipelines, "it")
        while count + sum(n for n, _ in self._kept.values()) > self.limits.pipelines:
            self._kept.pop(next(iter(self._kept)))[1]()
        self._kept[owner] = count, drop


_FOLDABLE, _PER_BYTE = 32 << 20, 4  # what may be folded, by default, and how much more for each byte of the files
_current: ContextVar[tuple[Budget, float, str] | None] = ContextVar("budget", default=None)  # until when, for what
clock = time.monotonic


def current() -> Budget | None:
    """The budget of the block around."""
    found = _current.get()
    return found and found[0]


def tick() -> None:
    """LimitExceeded if the load or the call that this is part of has taken too long."""
    found = _current.get()
    if found is not None and clock() > found[1]:
        raise exceeded("seconds", 0, found[0].limits.seconds, found[2])


def spend(name: Literal["nodes", "items", "plans"], amount: int, what: str) -> None:
    """So much more of what is counted over a whole program; LimitExceeded if that is too much."""
    tick()
    if (budget := current()) is not None:
        spent = budget.spent[name] = budget.spent[name] + amount
        most = getattr(budget.limits, name)
        if spent > most:
            raise exceeded(name, spent, most, what)


def has_read(nbytes: int) -> None:
    """A file of the program has so many bytes."""
    if (budget := current()) is not None:
        budget.read += nbytes
        if budget.limits.folded is None:
            budget.foldable += _PER_BYTE * nbytes


def may_fold(nbytes: int) -> bool:
    """Whether so many bytes more are to be computed from constants now."""
    tick()
    if (budget := current()) is None:
        return True
    fits = nbytes <= budget.foldable
    budget.foldable -= nbytes if fits else 0
    return fits


def copying(nbytes: int) -> None:
    """So many bytes of weights are about to be made from those in the files."""
    if (budget := current()) is not None:
        budget.copied += nbytes
        budget.hold_constants(budget.copied)


def left() -> int:
    """Bytes of memory that the program may still take."""
    return Limits().memory if (budget := current()) is None else budget.left


def hold(owner: object, nbytes: int, what: str) -> None:
    """See `Budget.hold`."""
    if (budget := current()) is not None:
        budget.hold(owner, nbytes, what)


def exceeded(name: Name, amount: float, most: float, what: str) -> LimitExceeded:
    """The error."""
    if name == "seconds":
        needs = f"{what} took more than {most:g} seconds"
    else:
        needs = f"{what} needs {amount:,} {_UNITS[name]}, {most:,} are allowed"
    return LimitExceeded(f"{needs}; where you trust the file, load it with limits=Limits({name}=…) or --limit {name}=…")
