"""Symbolic sizes: a shape rule that runs on them once holds for all sizes that satisfy the same guards.

A `Size` has a value and an expression over the *sources* of a graph: the sizes of its inputs and its symbolic ints.
Arithmetic builds expressions. A comparison uses the value and records a *guard*: everything after it holds wherever the
comparison has the same outcome. Code that needs the plain number (a constant of a kernel, a key of a dictionary, a
text) gets it through `__index__`, `__hash__` or `__str__`, and each of these records that the size equals that number.
A `Size` is not an `int`, so its number is never fixed silently.

Expressions are rows of one table, (operator, a, b), in which equal rows occur once and a row refers to earlier rows.
Each row has a range, derived from the ranges of the sources. A comparison that the ranges decide needs no guard.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

Row: TypeAlias = tuple[str, int | float, int | float]  # operands are rows; "const" has a number, "source" its index
Range: TypeAlias = tuple[float, float]

BIG = float("inf")
COMMUTATIVE = ("add", "mul", "min", "max", "eq", "ne")
COMPARES = {"lt": "ge", "ge": "lt", "eq": "ne", "ne": "eq"}  # comparison to its negation


class ExpressionTable:
    """Expressions over sources with known ranges."""

    def __init__(self, sources: Sequence[Range] = ()) -> None:
        self.rows: list[Row] = []
        self.ranges: list[Range] = []
        self._row_numbers: dict[Row, int] = {}
        self.sources = [self.add("source", k, 0, limits) for k, limits in enumerate(sources)]

    def const(self, value: int | float) -> int:
        value = int(value) if isinstance(value, bool) else value
        return self.add("const", value, 0, (value, value))

    def add(self, op: str, a: int | float, b: int | float, limits: Range | None = None) -> int:
        """Return the number of this row; add it if it is new."""
        if op in COMMUTATIVE and b < a:
            a, b = b, a
        row = (op, a, b)
        key: Any = row if op != "const" else (op, a, type(a).__name__)
        if key not in self._row_numbers:
            self._row_numbers[key] = len(self.rows)
            self.rows.append(row)
            self.ranges.append(limits or result_range(op, self.ranges[int(a)], self.ranges[int(b)]))
        return self._row_numbers[key]


def result_range(op: str, a: Range, b: Range) -> Range:
    """Return the range of results; unbounded for operators that are not worth the effort."""
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
    """The guards that one run of rules recorded, as rows of a table."""

    def __init__(self, table: ExpressionTable) -> None:
        self.table = table
        self.guards: dict[int, str] = {}  # row → origin: "compare", "value" or "text"
        self.ranges: dict[int, Range] = {}  # narrowed by guards

    def source(self, number: int, value: int) -> Size:
        return Size(self, self.table.sources[number], value)

    def at(self, row: int, value: int | float) -> Size | int | float:
        """Return the Size of a row; a constant is a plain number."""
        op, a, _ = self.table.rows[row]
        return a if op == "const" else Size(self, row, value)

    def row(self, x: Any) -> int:
        if isinstance(x, Size) and x.trace.table is self.table:
            return x.row
        return self.table.const(plain_value(x))  # a size of another graph, from a cache: equal to its pinned value

    def range(self, row: int) -> Range:
        return self.ranges.get(row) or self.table.ranges[row]

    def holds(self, op: str, a: int, b: int, outcome: bool, origin: str = "compare") -> bool:
        """Record that a comparison of two rows has this outcome, unless their ranges imply it; return the outcome."""
        if not outcome:
            op = COMPARES[op]
        if a == b or self._decided(op, self.range(a), self.range(b)):
            return outcome
        self.guards.setdefault(self.table.add(op, a, b), origin)
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


def _binary_operator(op: str, swapped: bool = False) -> Callable[[Size, Any], Any]:
    return lambda self, other: self._binary(op, other, swapped)


def _comparison(op: str, compute: Callable[[Any, Any], bool], swapped: bool = False) -> Callable[[Size, Any], bool]:
    def compare(self: Size, other: Any) -> bool:
        if not isinstance(other, int | float | Size):
            return NotImplemented
        a, b = self.row, self.trace.row(other)
        outcome = compute(self.value, plain_value(other))
        return self.trace.holds(op, *((b, a) if swapped else (a, b)), outcome)

    return compare


class Size:
    """A number with its expression: an int, or a float after a division. See the module."""

    __slots__ = ("row", "trace", "value")

    def __init__(self, trace: Trace, row: int, value: int | float) -> None:
        self.trace, self.row, self.value = trace, row, value

    def _pin(self, origin: str) -> int | float:
        self.trace.holds("eq", self.row, self.trace.table.const(self.value), True, origin)
        return self.value

    def __index__(self) -> int:
        if not isinstance(self.value, int):
            raise TypeError(f"expected an int, got {self.value}")
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

    def __format__(self, spec: str) -> str:
        return format(self._pin("text"), spec)

    def __bool__(self) -> bool:
        return self != 0

    def bit_length(self) -> int:
        if self < 0:
            return int(self).bit_length()
        bits = int(self.value).bit_length()
        same = self < 1 << bits and (not bits or self >= 1 << (bits - 1))  # always true; it records the guards
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

    __add__ = __radd__ = _binary_operator("add")
    __sub__ = _binary_operator("sub")
    __rsub__ = _binary_operator("sub", swapped=True)
    __mul__ = __rmul__ = _binary_operator("mul")
    __floordiv__ = _binary_operator("floordiv")
    __rfloordiv__ = _binary_operator("floordiv", swapped=True)
    __mod__ = _binary_operator("mod")
    __rmod__ = _binary_operator("mod", swapped=True)
    __truediv__ = _binary_operator("div")
    __rtruediv__ = _binary_operator("div", swapped=True)
    __eq__ = _comparison("eq", operator.eq)
    __ne__ = _comparison("ne", operator.ne)
    __lt__ = _comparison("lt", operator.lt)
    __ge__ = _comparison("ge", operator.ge)
    __gt__ = _comparison("lt", operator.gt, swapped=True)
    __le__ = _comparison("ge", operator.le, swapped=True)

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
        return self._rounded("ceil", math.ceil)

    def __floor__(self) -> Any:
        return self._rounded("floor", math.floor)

    def _rounded(self, op: str, compute: Callable[[float], int]) -> Any:
        if isinstance(self.value, int):
            return self
        return self.trace.at(self.trace.table.add(op, self.row, self.row), compute(self.value))

    def __and__(self, other: int) -> int:
        return int(self) & other

    __rand__ = __and__

    def __or__(self, other: int) -> int:
        return int(self) | other

    __ror__ = __or__


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
    """Return an algebraic simplification such as x * 0; None if none applies."""
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
    """Return the current value without recording a guard. Use it only for memory sizes."""
    return x.value if isinstance(x, Size) else x


def real(x: Any) -> float:
    """Return float(x), as an expression."""
    return x if isinstance(x, Size) else float(x)  # type: ignore[return-value]


def cached(maxsize: int) -> Callable[[F], F]:
    """Return functools.lru_cache with sizes in arguments pinned, so that cached kernels keep no trace alive."""

    def decorate(function: F) -> F:
        inner = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def outer(*args: Any, **keywords: Any) -> Any:
            return inner(*map(_pinned, args), **{k: _pinned(v) for k, v in keywords.items()})

        outer.cache_clear = inner.cache_clear  # type: ignore[attr-defined]
        return outer  # type: ignore[return-value]

    return decorate


def _pinned(x: Any) -> Any:
    """Return an argument with sizes replaced by their plain numbers, which records guards."""
    if isinstance(x, Size):
        return x._pin("value")
    if isinstance(x, int | float | str | None):
        return x
    if isinstance(x, tuple):
        items = [_pinned(item) for item in x]
        if all(a is b for a, b in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
    kind: Any = type(x)
    changed = {name: new for name in _fields_of(kind) if (new := _pinned(old := getattr(x, name))) is not old}
    return replace(x, **changed) if changed else x


@functools.cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()


def ceil(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def smallest(a: Any, b: Any) -> Any:
    """Return min(a, b) as an expression, without a guard that splits the plan."""
    return _extreme("min", a, b)


def largest(a: Any, b: Any) -> Any:
    """Return max(a, b) as an expression, without a guard that splits the plan."""
    return _extreme("max", a, b)


def _extreme(op: str, a: Any, b: Any) -> Any:
    if isinstance(a, Size):
        return a._binary(op, b)
    return b._binary(op, a) if isinstance(b, Size) else COMPUTE[op](a, b)
