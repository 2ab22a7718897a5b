"""Sizes that remember where they came from: a rule that runs on them once says what it does at every size like these.

A `Size` has a value and an expression over the *sources* of a graph: the sizes of its inputs and its symbolic ints.
Arithmetic makes expressions. A comparison answers with the value and records a *guard*: what comes after it holds
wherever the comparison has the same outcome. Whatever needs the plain number (a constant of a kernel, a key of a
dictionary, a text) gets it through `__index__`, `__hash__` or `__str__`, and each of these records that the size equals
that number. A `Size` is no `int`, so there is no other way to it: nothing is ever baked in silently.

Expressions are rows of one table, (operator, a, b), in which equal rows occur once and a row refers to earlier ones.
Each row has a range that follows from those of the sources: a comparison that the ranges decide needs no guard.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

Row: TypeAlias = tuple[str, int | float, int | float]  # operands are rows; of "const" a number, of "source" its number
Range: TypeAlias = tuple[float, float]

BIG = float("inf")
COMMUTATIVE = ("add", "mul", "min", "max", "eq", "ne")
COMPARES = {"lt": "ge", "ge": "lt", "eq": "ne", "ne": "eq"}  # each with its opposite


class Table:
    """Expressions over sources with known ranges."""

    def __init__(self, sources: Sequence[Range] = ()) -> None:
        self.rows: list[Row] = []
        self.ranges: list[Range] = []
        self._known: dict[Row, int] = {}
        self.sources = [self.add("source", k, 0, known) for k, known in enumerate(sources)]

    def const(self, value: int | float) -> int:
        value = int(value) if isinstance(value, bool) else value
        return self.add("const", value, 0, (value, value))

    def add(self, op: str, a: int | float, b: int | float, known: Range | None = None) -> int:
        """The number of this row."""
        if op in COMMUTATIVE and b < a:
            a, b = b, a
        row = (op, a, b)
        key: Any = row if op != "const" else (op, a, type(a).__name__)
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append(row)
            self.ranges.append(
                known if known is not None else result_range(op, self.ranges[int(a)], self.ranges[int(b)])
            )
        return self._known[key]


def result_range(op: str, a: Range, b: Range) -> Range:
    """Where results lie; wide open where that would take more thought than it is worth."""
    match op:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            ends = [0 if 0 in (x, y) else x * y for x in a for y in b]
            return min(ends), max(ends)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "floordiv" if b[0] > 0:
            ends = [_floor(x / y) for x in a for y in b]
            return min(ends), max(ends)
        case "div" if b[0] > 0:
            ends = [x / y if abs(x) != BIG else x for x in a for y in b]
            return min(ends), max(ends)
        case "mod" if b[0] > 0:
            return 0, b[1] - 1
        case "ceil" | "floor":
            return _floor(a[0]), _floor(a[1]) + 1
    return (0, 1) if op in COMPARES else (-BIG, BIG)


def _floor(x: float) -> float:
    return x if x in (BIG, -BIG) or x != x else math.floor(x)


class Trace:
    """What one run of rules found out: the guards under which everything else holds, as rows of a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.guards: dict[int, str] = {}  # row → how it came about: "compare", "value" or "text"
        self.ranges: dict[int, Range] = {}  # narrower ones, where guards say so

    def source(self, number: int, value: int) -> Size:
        return Size(self, self.table.sources[number], value)

    def at(self, row: int, value: int | float) -> Size | int | float:
        """What a row is here; a constant is a plain number."""
        op, a, _ = self.table.rows[row]
        return a if op == "const" else Size(self, row, value)

    def row(self, x: Any) -> int:
        if isinstance(x, Size) and x.trace.table is self.table:
            return x.row
        return self.table.const(plain_value(x))  # of another graph, in a cache: equal to what was pinned

    def range(self, row: int) -> Range:
        return self.ranges.get(row) or self.table.ranges[row]

    def holds(self, op: str, a: int, b: int, outcome: bool, how: str = "compare") -> bool:
        """Record that a comparison of two rows has this outcome, unless it has to."""
        if not outcome:
            op = COMPARES[op]
        if a == b or self._decided(op, self.range(a), self.range(b)):
            return outcome
        self.guards.setdefault(self.table.add(op, a, b), how)
        self._narrow(op, a, b)
        return outcome

    def _decided(self, op: str, a: Range, b: Range) -> bool:
        match op:
            case "lt":
                return a[1] < b[0]
            case "ge":
                return a[0] >= b[1]
            case "eq":
                return a[0] == a[1] == b[0] == b[1]
            case _:
                return a[1] < b[0] or b[1] < a[0]

    def _narrow(self, op: str, a: int, b: int) -> None:
        (low, high), (least, most) = self.range(a), self.range(b)
        if op == "lt":
            self.ranges[a], self.ranges[b] = (low, min(high, most - 1)), (max(least, low + 1), most)
        elif op == "ge":
            self.ranges[a], self.ranges[b] = (max(low, least), high), (least, min(most, high))
        elif op == "eq":
            self.ranges[a] = self.ranges[b] = (max(low, least), min(high, most))
        elif least == most == low:
            self.ranges[a] = (low + 1, high)


class Size:
    """A number with its expression: an int, or a float where sizes are divided. See the module."""

    __slots__ = ("row", "trace", "value")

    def __init__(self, trace: Trace, row: int, value: int | float) -> None:
        self.trace, self.row, self.value = trace, row, value

    def _pin(self, how: str) -> int | float:
        self.trace.holds("eq", self.row, self.trace.table.const(self.value), True, how)
        return self.value

    def __index__(self) -> int:
        if not isinstance(self.value, int):
            raise TypeError(f"{self.value} is no int")
        return int(self._pin("value"))

    def __int__(self) -> int:
        return int(self._pin("value"))

    def __float__(self) -> float:
        return float(self._pin("value"))

    def __hash__(self) -> int:
        return hash(self._pin("value"))

    def __repr__(self) -> str:
        return repr(self._pin("text"))

    __str__ = __repr__

    def __format__(self, how: str) -> str:
        return format(self._pin("text"), how)

    def __bool__(self) -> bool:
        return self != 0

    def bit_length(self) -> int:
        if self < 0:
            return int(self).bit_length()
        bits = int(self.value).bit_length()
        same = self < 1 << bits and (not bits or self >= 1 << (bits - 1))  # it is: asking leaves the guards
        return bits if same else int(self).bit_length()

    def is_integer(self) -> bool:
        return isinstance(self.value, int) or float(self._pin("value")).is_integer()

    def _binary(self, op: str, other: Any, swapped: bool = False) -> Any:
        if not isinstance(other, int | float | Size):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        plain = plain_value(other)
        x, y = (plain, self.value) if swapped else (self.value, plain)
        if op in ("floordiv", "mod", "div") and y == 0:
            self.trace.holds("eq", self.trace.row(b), self.trace.table.const(0), True)
            raise ZeroDivisionError("a size is divided by zero")
        if op in ("floordiv", "mod", "div"):
            self.trace.holds("ne", self.trace.row(b), self.trace.table.const(0), True)
        value = COMPUTE[op](x, y)
        simple = _simple(op, a, b)
        if simple is not None:
            return simple
        return self.trace.at(self.trace.table.add(op, self.trace.row(a), self.trace.row(b)), value)

    def __add__(self, other: Any) -> Any:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._binary("add", other)

    def __sub__(self, other: Any) -> Any:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary("sub", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Any:
        return self._binary("mul", other)

    def __floordiv__(self, other: Any) -> Any:
        return self._binary("floordiv", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._binary("floordiv", other, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._binary("mod", other)

    def __rmod__(self, other: Any) -> Any:
        return self._binary("mod", other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._binary("div", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary("div", other, swapped=True)

    def __lshift__(self, bits: int) -> Any:
        return self._binary("mul", 1 << bits)

    def __rshift__(self, bits: int) -> Any:
        return self._binary("floordiv", 1 << bits)

    def __neg__(self) -> Any:
        return self._binary("sub", 0, swapped=True)

    def __pos__(self) -> Size:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __ceil__(self) -> Any:
        return self._whole("ceil", math.ceil)

    def __floor__(self) -> Any:
        return self._whole("floor", math.floor)

    def _whole(self, op: str, compute: Callable[[float], int]) -> Any:
        if isinstance(self.value, int):
            return self
        return self.trace.at(self.trace.table.add(op, self.row, self.row), compute(self.value))

    def __and__(self, other: int) -> int:
        return int(self) & other

    __rand__ = __and__

    def __or__(self, other: int) -> int:
        return int(self) | other

    __ror__ = __or__

    def _compare(self, op: str, other: Any, outcome: bool, swapped: bool = False) -> bool:
        a, b = self.row, self.trace.row(other)
        return self.trace.holds(op, *((b, a) if swapped else (a, b)), outcome)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float | Size):
            return NotImplemented
        return self._compare("eq", other, self.value == plain_value(other))

    def __ne__(self, other: object) -> bool:
        if not isinstance(other, int | float | Size):
            return NotImplemented
        return self._compare("ne", other, self.value != plain_value(other))

    def __lt__(self, other: Any) -> bool:
        return self._compare("lt", other, self.value < plain_value(other))

    def __ge__(self, other: Any) -> bool:
        return self._compare("ge", other, self.value >= plain_value(other))

    def __gt__(self, other: Any) -> bool:
        return self._compare("lt", other, self.value > plain_value(other), swapped=True)

    def __le__(self, other: Any) -> bool:
        return self._compare("ge", other, self.value <= plain_value(other), swapped=True)


COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "div": lambda a, b: a / b,
    "min": min,
    "max": max,
}


def _simple(op: str, a: Any, b: Any) -> Any:
    """The result where an operand says it all; None elsewhere."""
    if op == "mul" and (_is(a, 0) or _is(b, 0)):
        return 0
    if (op == "add" and _is(b, 0)) or (op in ("mul", "floordiv") and _is(b, 1)) or (op == "sub" and _is(b, 0)):
        return a
    if (op == "add" and _is(a, 0)) or (op == "mul" and _is(a, 1)):
        return b
    if op == "mod" and _is(b, 1):
        return 0
    same = isinstance(a, Size) and isinstance(b, Size) and a.row == b.row
    return {"sub": 0, "floordiv": 1, "mod": 0}.get(op) if same else None


def _is(x: Any, number: int) -> bool:
    return type(x) is int and x == number


def plain_value(x: Any) -> Any:
    """The number without a guard: for what decides nothing, such as the room that memory takes."""
    return x.value if isinstance(x, Size) else x


def real(x: Any) -> float:
    """float(x), as an expression."""
    return x if isinstance(x, Size) else float(x)  # type: ignore[return-value]


def cached(maxsize: int) -> Callable[[F], F]:
    """functools.lru_cache for makers of kernels: what a size is there, it is for good, so that no trace is kept."""

    def decorate(function: F) -> F:
        inner = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def outer(*args: Any, **keywords: Any) -> Any:
            return inner(*map(_pinned, args), **{k: _pinned(v) for k, v in keywords.items()})

        outer.cache_clear = inner.cache_clear  # type: ignore[attr-defined]
        return outer  # type: ignore[return-value]

    return decorate


def _pinned(x: Any) -> Any:
    """Sizes in arguments as plain numbers; each is then equal to that."""
    if isinstance(x, Size):
        return x._pin("value")
    if isinstance(x, int | float | str | None):
        return x
    if isinstance(x, tuple):
        found = [_pinned(item) for item in x]
        if all(a is b for a, b in zip(found, x, strict=True)):
            return x
        return type(x)(*found) if hasattr(x, "_fields") else tuple(found)
    kind: Any = type(x)
    changed = {name: new for name in _fields_of(kind) if (new := _pinned(old := getattr(x, name))) is not old}
    return replace(x, **changed) if changed else x


@functools.cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def smallest(a: Any, b: Any) -> Any:
    """min(a, b), as an expression: it splits no plan in two."""
    return _extreme("min", a, b)


def largest(a: Any, b: Any) -> Any:
    """max(a, b), as an expression: it splits no plan in two."""
    return _extreme("max", a, b)


def _extreme(op: str, a: Any, b: Any) -> Any:
    if isinstance(a, Size):
        return a._binary(op, b)
    return b._binary(op, a) if isinstance(b, Size) else COMPUTE[op](a, b)
