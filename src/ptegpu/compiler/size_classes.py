"""Classes of sizes that guards declare equal, and sizes with a fixed value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..plan.plan import Row
from ..sizes import ExpressionTable


class SizeClasses:
    """Classes of equal sources of sizes. A source in `pinned` has its largest value."""

    def __init__(self, sources: Iterable[int]) -> None:
        self.pinned: set[int] = set()
        self._parent = {row: row for row in sorted(sources)}

    def root(self, row: int) -> int:
        """Return the source that represents this one's class."""
        while self._parent[row] != row:
            row = self._parent[row]
        return row

    def join(self, a: int, b: int) -> None:
        """Put two sources into one class."""
        self._parent[self.root(a)] = self.root(b)

    def members(self) -> dict[int, list[int]]:
        """Return the sources of each class, by the one that represents it."""
        classes: dict[int, list[int]] = {}
        for row in self._parent:
            classes.setdefault(self.root(row), []).append(row)
        return classes

    def fixed(self) -> set[int]:
        """Return the classes with a fixed value."""
        return {self.root(row) for row in self.pinned}

    def join_products(self, table: ExpressionTable, guards: Iterable[int]) -> bool:
        """Join and pin sizes that are probably equal because their products are; return True if anything changed.

        A view of a result only implies that x[0]·x[1]·4 = y[0]·x[1]·x[2]. Factors on both sides cancel out, and the
        others are paired if they have the same largest value.
        """
        before = len(self.members()), len(self.fixed())
        for g in guards:
            op, a, b = table.rows[g]
            left, right = self._factors(table.rows, int(a)), self._factors(table.rows, int(b))
            if op != "eq" or left is None or right is None:
                continue
            for row in list(left):
                if row in right:
                    left.remove(row)
                    right.remove(row)
            self._pair(table, left, right)
            self.pinned |= self._largest(table, left, right) | self._largest(table, right, left)
        return before != (len(self.members()), len(self.fixed()))

    def _pair(self, table: ExpressionTable, left: list[int], right: list[int]) -> None:
        """Join sources with the same largest value, and remove them from both lists."""
        for row in [r for r in left if r in self._parent]:
            same = (r for r in right if r in self._parent and table.ranges[r][1] == table.ranges[row][1])
            if (other := next(same, None)) is not None:
                self.join(row, other)
                left.remove(row)
                right.remove(other)

    def _largest(self, table: ExpressionTable, sources: list[int], numbers: list[int]) -> set[int]:
        """Return the sources whose product only equals that of the numbers if each has its largest value."""
        if not set(sources) <= set(self._parent) or not all(table.rows[r][0] == "const" for r in numbers):
            return set()
        largest, value = (math.prod(table.ranges[r][1] for r in rows) for rows in (sources, numbers))
        return set(sources) if largest == value else set()

    def _factors(self, rows: Sequence[Row], row: int) -> list[int] | None:
        """Return the classes and constants that a row is a product of; None if it is no such product."""
        op, a, b = rows[row]
        if op == "mul":
            left, right = self._factors(rows, int(a)), self._factors(rows, int(b))
            return None if left is None or right is None else left + right
        if op == "size" and row in self._parent:
            return [self.root(row)]
        return [row] if op == "const" else None
