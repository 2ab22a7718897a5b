"""Rows of a plan evaluated: as generated functions, fast at one set of sizes, or with NumPy at many."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .plan import Row

Shapes: TypeAlias = Sequence[Any]  # the shape of each input, or its value if it is an int
Item: TypeAlias = Callable[[int, int], int]  # (input, flat index) → the element's value
Program: TypeAlias = Callable[[Shapes, Item], tuple[Any, ...]]

_TEXT = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "floordiv": "floordiv({}, {})", "mod": "mod({}, {})",
    "div": "div({}, {})", "min": "min({}, {})", "max": "max({}, {})", "ceil": "ceil({})", "floor": "floor({})",
    "lt": "{} < {}", "ge": "{} >= {}", "eq": "{} == {}", "ne": "{} != {}",
}  # fmt: skip


def _floordiv(a: float, b: float) -> float:
    return a // b if b else 0


def _mod(a: float, b: float) -> float:
    return a % b if b else 0


def _div(a: float, b: float) -> float:
    return a / b if b else 0.0


SCALAR: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": _floordiv, "mod": _mod, "div": _div,
    "min": min, "max": max, "ceil": lambda a, _: math.ceil(a), "floor": lambda a, _: math.floor(a),
    "lt": operator.lt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_NAMES = {"floordiv": _floordiv, "mod": _mod, "div": _div, "ceil": math.ceil, "floor": math.floor}


def with_operands(rows: Sequence[Row], targets: Iterable[int]) -> list[int]:
    """Return these rows and all rows they are computed from, in order."""
    visited: set[int] = set()
    queue = list(targets)
    while queue:
        k = queue.pop()
        if k in visited:
            continue
        visited.add(k)
        op, a, b = rows[k]
        if op in _TEXT:
            queue += [int(a), int(b)]
        elif op == "item":
            queue.append(int(a))
    return sorted(visited)


def compile_rows(rows: Sequence[Row], targets: Sequence[int]) -> Program:
    """Return a function from (shapes, item) to the values of the target rows."""
    lines = []
    for k in with_operands(rows, targets):
        op, a, b = rows[k]
        if op == "const":
            text = repr(a)
        elif op == "size":
            text = f"shapes[{int(a)}][{int(b)}]"
        elif op == "int":
            text = f"shapes[{int(a)}]"
        elif op == "item":
            text = f"item({int(b)}, e{int(a)})"
        else:
            text = _TEXT[op].format(f"e{int(a)}", f"e{int(b)}")
        lines.append(f"  e{k} = {text}")
    lines.append(f"  return ({''.join(f'e{k}, ' for k in targets)})")
    names: dict[str, Any] = dict(_NAMES)
    exec("def f(shapes, item):\n" + "\n".join(lines), names)  # verified rows: only numbers and the texts above
    return names["f"]  # type: ignore[no-any-return]


Chooser: TypeAlias = Callable[[Sequence[Any]], tuple[int, ...]]


def chooser(switches: Sequence[tuple[tuple[int, ...], ...]]) -> Chooser:
    """Return a function from numbers to each switch's alternative: the first whose numbers are all nonzero, or -1."""
    lines = ["def f(n):"]
    for s, alternatives in enumerate(switches):
        lines.append("  while True:")  # runs once; thousands of nested alternatives would exceed the parser's stack
        for k, places in enumerate(alternatives):
            condition = " and ".join(f"n[{g}]" for g in places) or "True"
            lines.append(f"    if {condition}: s{s} = {k}; break")
        lines.append(f"    s{s} = -1; break")
    lines.append(f"  return ({''.join(f's{s}, ' for s in range(len(switches)))})")
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)  # numbers only
    return names["f"]  # type: ignore[no-any-return]


_ARRAYS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "floordiv": lambda a, b: np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b))),
    "mod": lambda a, b: np.where(b == 0, 0, np.mod(a, np.where(b == 0, 1, b))),
    "div": lambda a, b: np.where(b == 0, 0.0, np.true_divide(a, np.where(b == 0, 1, b))),
    "ceil": lambda a, _: np.ceil(a), "floor": lambda a, _: np.floor(a),
    "lt": np.less, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


class RowValues:
    """The cached values of rows, from those in `sources`: arrays for many points, or numbers with `SCALAR` operators.

    `item` reads elements of inputs. Without it, a row that depends on an element raises KeyError.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        sources: Mapping[int, Any],
        operators: Mapping[str, Callable[[Any, Any], Any]] = _ARRAYS,
        item: Item | None = None,
    ) -> None:
        self._rows, self._operators, self._item = rows, operators, item
        self._values: dict[int, Any] = dict(sources)

    def __getitem__(self, row: int) -> Any:
        if row not in self._values:
            for k in with_operands(self._rows, [row]):
                if k not in self._values:
                    op, a, b = self._rows[k]
                    if op == "const":
                        self._values[k] = a
                    elif op in self._operators:
                        self._values[k] = self._operators[op](self._values[int(a)], self._values[int(b)])
                    elif op == "item" and self._item is not None:
                        self._values[k] = self._item(int(b), self._values[int(a)])
                    else:
                        raise KeyError(k)
        return self._values[row]
