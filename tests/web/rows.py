"""The fixture web/test/rows.json for the browser's runner: rows of every operator with Python's values.

python -m tests.web.rows
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

from ptegpu.plan.numbers import SCALAR, compile_rows
from ptegpu.plan.plan import Row

FILE = Path(__file__).resolve().parents[2] / "web" / "test" / "rows.json"
EXACT = 2**53  # above, doubles do not hold every int, so a runner may differ
SIZES: list[Any] = [[3, 0, 512], [17], 7, -5]  # of two tensors, and two ints
ITEMS = [[], [4, -9, 2**31 - 1], [], []]
WHOLE = (-(2**52) + 1, -(10**9) - 7, -7, -1, 0, 1, 4, 7, 1000, 2**31, 2**40 + 1, 2**52 - 1)
PAIRED = [name for name in SCALAR if name not in ("ceil", "floor")]


def fixture() -> dict[str, Any]:
    rows: list[Row] = [("const", n, 0) for n in WHOLE]
    indices = range(len(rows))
    rows += [("size", 0, 0), ("size", 0, 1), ("size", 0, 2), ("size", 1, 0), ("int", 2, 0), ("int", 3, 0)]
    places = [("const", n, 0) for n in range(3)]
    rows += places
    rows += [("item", len(rows) - 3 + k, 1) for k in range(3)]
    inner = range(len(indices), len(rows))
    values = _values(rows)

    def add(op: str, a: int, b: int) -> None:
        value = SCALAR[op](values[a], values[b])
        if abs(value) < EXACT:
            rows.append((op, a, b))
            values.append(value)

    for op, a, b in product(PAIRED, indices, indices):
        add(op, a, b)
    for op, (a, b) in product(PAIRED, zip(inner, reversed(inner))):
        add(op, a, b)
    quotients = [k for k, (op, _, _) in enumerate(rows) if op == "div"]
    for k in quotients:
        for op in ("ceil", "floor"):
            add(op, k, k)
    for op, k in product(("add", "sub", "mul", "min", "max", "div", "lt", "ge", "eq", "ne"), quotients[::11]):
        add(op, k, quotients[7])
    return {"sizes": SIZES, "items": ITEMS, "rows": rows, "values": [float(v) for v in _values(rows)]}


def _values(rows: list[Row]) -> list[Any]:
    values = compile_rows(rows, range(len(rows)))(SIZES, lambda source, place: ITEMS[source][place])
    return list(values)


def text() -> str:
    return json.dumps(fixture(), separators=(",", ":")) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
