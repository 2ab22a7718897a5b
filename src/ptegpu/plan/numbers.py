"""Rows of a plan as numbers: for one set of sizes, fast, as the runner needs them, or for many at once with NumPy."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .plan import Row

Shapes: TypeAlias = Sequence[Any]  # of each input its shape, or the int itself
Item: TypeAlias = Callable[[int, int], int]  # an input's element: (input, flat element) → its value
Program: TypeAlias = Callable[[Shapes, Item], tuple[Any, ...]]

_TEXT = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "floordiv": "over({}, {})", "mod": "rest({}, {})",
    "div": "share({}, {})", "min": "min({}, {})", "max": "max({}, {})", "ceil": "ceil({})", "floor": "floor({})",
    "lt": "{} < {}", "ge": "{} >= {}", "eq": "{} == {}", "ne": "{} != {}",
}  # fmt: skip


def _over(a: float, b: float) -> float:
    return a // b if b else 0


def _rest(a: float, b: float) -> float:
    return a % b if b else 0


def _share(a: float, b: float) -> float:
    return a / b if b else 0.0


SCALAR: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": _over, "mod": _rest, "div": _share,
    "min": min, "max": max, "ceil": lambda a, _: math.ceil(a), "floor": lambda a, _: math.floor(a),
    "lt": operator.lt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_NAMES = {"over": _over, "rest": _rest, "share": _share, "min": min, "max": max, "ceil": math.ceil, "floor": math.floor}


def needed(rows: Sequence[Row], wanted: Iterable[int]) -> list[int]:
    """These rows and those that they are made of, in order."""
    found: set[int] = set()
    queue = list(wanted)
    while queue:
        k = queue.pop()
        if k in found:
            continue
        found.add(k)
        op, a, b = rows[k]
        if op in _TEXT:
            queue += [int(a), int(b)]
        elif op == "item":
            queue.append(int(a))
    return sorted(found)


def program(rows: Sequence[Row], wanted: Sequence[int]) -> Program:
    """A function from (shapes, item) to the values of the wanted rows."""
    lines = []
    for k in needed(rows, wanted):
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
    lines.append(f"  return ({''.join(f'e{k}, ' for k in wanted)})")
    names: dict[str, Any] = dict(_NAMES)
    exec("def f(shapes, item):\n" + "\n".join(lines), names)  # of checked rows: numbers and the texts above
    return names["f"]  # type: ignore[no-any-return]


Chooser: TypeAlias = Callable[[Sequence[Any]], tuple[int, ...]]


def chooser(switches: Sequence[tuple[tuple[int, ...], ...]]) -> Chooser:
    """From numbers to the alternative that each switch takes: the first whose places are all not 0, or -1."""
    lines = ["def f(n):"]
    for s, alternatives in enumerate(switches):
        lines.append("  while True:")  # once, and left by break: nested, thousands of alternatives exceed the stack
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


class Many:
    """Rows at many points at once: arrays, kept. `given` are those of the rows that are sizes, ints and items."""

    def __init__(self, rows: Sequence[Row], given: Mapping[int, np.ndarray]) -> None:
        self._rows = rows
        self._found: dict[int, Any] = dict(given)

    def __getitem__(self, row: int) -> Any:
        if row not in self._found:
            for k in needed(self._rows, [row]):
                if k not in self._found:
                    op, a, b = self._rows[k]
                    if op not in _ARRAYS and op != "const":
                        raise KeyError(k)
                    self._found[k] = a if op == "const" else _ARRAYS[op](self._found[int(a)], self._found[int(b)])
        return self._found[row]
