"""The sizes at which a plan is made: all of them where there are few, else a sample.

A column holds the values of one source (a size, an int, or an element of data that decides something), a row of all
columns is a *point*. Sizes that guards call equal vary together; sizes that must have a value have only that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..plan.numbers import SCALAR, Item, Many, needed
from ..sizes import BIG, Range, Size, Table, Trace, plain_value, result_range
from . import sample
from .classes import Classes
from .room import Named

MAX_INTS = 1024  # values of an int that is no size


class Point:
    """Values of a table's rows at one set of sizes. `sources` are those of sizes and ints, `item` reads data.

    Unknown data is 0.
    """

    def __init__(self, table: Table, sources: Mapping[int, int], item: Item = lambda _, __: 0) -> None:
        self.table, self._values, self._item = table, dict(sources), item

    def __getitem__(self, row: int) -> int:
        if row not in self._values:
            for k in needed(self.table.rows, [row]):
                if k not in self._values:
                    op, a, b = self.table.rows[k]
                    if op == "item":
                        self._values[k] = self._item(int(b), self._values[int(a)])
                    elif op == "const":
                        self._values[k] = a  # type: ignore[assignment]
                    else:
                        self._values[k] = SCALAR[op](self._values[int(a)], self._values[int(b)])
        return self._values[row]

    def satisfies(self, guards: Iterable[int]) -> bool:
        """Return whether all guards hold here."""
        return all(bool(self[g]) for g in guards)


class SizeGrid:
    """Points of a graph's sizes and ints, and which guards hold at them.

    `names` maps the table's rows of sizes and ints to their names. `sizes` lists values by name, each combined with
    each; `points` lists whole sets of values instead, in which a size that is not named is as large as it can be.
    """

    def __init__(
        self,
        table: Table,
        names: Mapping[int, str],
        sizes: Named,
        points: Sequence[Mapping[str, int]],
        largest_dim: int,
    ) -> None:
        self.table, self.names, self.sizes, self.points = table, names, sizes, points
        self.largest_dim = largest_dim  # of any tensor: the bound of ints that become sizes
        self.columns: dict[int, np.ndarray] = {}
        self.complete = False  # whether the program allows no other points
        self.anchors: set[int] = set()  # guards that joined or pinned sizes
        self._many = Many(table.rows, self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 1

    def largest(self) -> Point:
        """Return the point at which every size is as large as it can be, and every int its first value."""
        values = {}
        for row, name in self.names.items():
            high = self._largest(row)
            values[row] = self.sizes.get(name, [0])[0] if high is None else high
        return Point(self.table, values)

    def point(self, k: int) -> Point:
        """Return point k of the grid."""
        return Point(self.table, {row: int(values[k]) for row, values in self.columns.items()})

    def lay_out(self, guards: Sequence[int], deciding: Iterable[int] = ()) -> None:
        """Fill the columns, with what these guards of the shapes at the largest sizes say about sizes.

        `deciding` are further sources: ints and data on which guards depend. Sizes that seem to belong together, since
        products of them are equal, come twice: once together, and first.
        """
        sources = {*self.names, *deciding}
        classes = Classes(sources)
        for g in guards:
            op, a, b = self.table.rows[g]
            if op == "eq" and a in sources and b in sources:
                classes.join(int(a), int(b))
                self.anchors.add(g)
            elif op == "eq" and "const" in (self.table.rows[int(a)][0], self.table.rows[int(b)][0]):
                fixed = {int(x) for x in (a, b) if x in self.names}
                classes.pinned |= fixed
                self.anchors |= {g} if fixed else set()
        if self.points:
            self.columns, self.complete = self._listed(), False
        else:
            self.columns, self.complete = self._product(classes, deciding)
            if classes.join_products(self.table, guards):
                more, _ = self._product(classes, deciding)
                self.columns = {row: np.concatenate([values, more[row]]) for row, values in self.columns.items()}
        self.forget()

    def forget(self) -> None:
        """Drop the arrays that were computed from the columns."""
        self._many = Many(self.table.rows, self.columns)

    def knows(self, row: int) -> bool:
        """Return whether a row depends on sizes only, not on unknown data."""
        try:
            self._many[row]
        except KeyError:
            return False
        return True

    def mask(self, guards: Iterable[int]) -> np.ndarray:
        """Return at which points all guards hold; unknown data counts as zeros, as where guards were traced."""
        mask = np.ones(len(self), bool)
        for g in guards:
            many = self._many
            if not self.knows(g):
                unseen = (row for row in needed(self.table.rows, [g]) if self.table.rows[row][0] == "item")
                many = Many(self.table.rows, {**self.columns, **dict.fromkeys(unseen, np.zeros(len(self), np.int64))})
            mask &= np.asarray(many[g], bool)
        return mask

    def distinguishing(self, guards: Sequence[int], inside: np.ndarray) -> tuple[int, ...]:
        """Return the guards that tell points `inside` from each other; the others hold at all or none of them."""
        kept = list(guards)
        for g in guards:
            others = [x for x in kept if x != g]
            if np.array_equal(self.mask(kept) & inside, self.mask(others) & inside) and self.knows(g):
                kept = others
        return tuple(kept)

    def most(self, size: Size, trace: Trace) -> int:
        """Return the largest value of a size where the trace's guards hold."""
        here = int(plain_value(size))
        if self.columns and self.knows(size.row):
            mask = self.mask(trace.guards)
            return int(np.max(np.broadcast_to(self._many[size.row], mask.shape)[mask], initial=here))
        high = self._range(size.row, trace)[1]
        return here if high == BIG else int(high)

    def _range(self, row: int, trace: Trace) -> Range:
        """Return the range of a row that follows from what the trace knows about its operands."""
        ranges: dict[int, Range] = {}
        for k in needed(self.table.rows, [row]):
            op, a, b = self.table.rows[k]
            known = trace.ranges.get(k)
            if known is None:
                known = result_range(op, ranges[int(a)], ranges[int(b)]) if op in SCALAR else self.table.ranges[k]
            ranges[k] = known
        return ranges[row]

    def _largest(self, row: int) -> int | None:
        """Return the largest value of a size; None for an int."""
        return int(self.table.ranges[row][1]) if self.table.rows[row][0] == "size" else None

    def _listed(self) -> dict[int, np.ndarray]:
        """Return the columns of `points`."""
        return {
            row: np.array([p.get(name, self._largest(row) or 0) for p in self.points], np.int64)
            for row, name in self.names.items()
        }

    def _product(self, classes: Classes, deciding: Iterable[int]) -> tuple[dict[int, np.ndarray], bool]:
        """Return columns that combine each value with each, and whether the program allows no other values."""
        axes: list[Sequence[int]] = []
        complete = True
        members, pinned = classes.members(), classes.fixed()
        for key, rows in members.items():
            named = [v for row in rows for v in self.sizes.get(self.names.get(row, ""), ())]
            high = min((n for row in rows if (n := self._largest(row)) is not None), default=None)
            if high is None:
                axes.append(named or (self._values_of_ints() if set(deciding) & set(rows) else [0]))
                complete = False
            elif named:
                axes.append(sorted({v for v in named if 0 <= v <= high}))
                complete = False
            else:
                axes.append([high] if key in pinned else range(high + 1))
        total = math.prod(map(len, axes))
        complete = complete and total <= sample.MAX_POINTS
        points = sample.every(axes, total) if total <= sample.MAX_POINTS else sample.sample(axes)
        return {row: points[:, k] for k, rows in enumerate(members.values()) for row in rows}, complete

    def _values_of_ints(self) -> list[int]:
        """Return the values of an int that sizes are made of, or a sample: up to the largest dimension, and below 0."""
        values = sample.pick(range(self.largest_dim + 1), MAX_INTS)
        return sorted({v for n in values for v in (-n, n)}, key=lambda v: (abs(v), v))
