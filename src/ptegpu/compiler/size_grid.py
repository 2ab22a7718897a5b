"""The grid of sizes at which a plan is traced: all sizes if there are few, otherwise a sample.

A column has the values of one source (a size, an int, or an element of data that guards depend on), and a row of all
columns is a *point*. Sizes that guards declare equal vary as one; sizes that must have a certain value only have that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..plan.numbers import SCALAR, Item, RowValues, with_operands
from ..sizes import BIG, ExpressionTable, Range, Size, Trace, plain_value, result_range
from .graph_memory import NamedSizes
from .size_classes import SizeClasses

MAX_POINTS = 16384  # of a grid
MAX_VALUES = 64  # of one size in a sample
MAX_INTS = 1024  # values of an int that is not a size


class Point(RowValues):
    """The values of a table's rows at one set of sizes, given those of `sources`. By default all data is 0."""

    def __init__(self, table: ExpressionTable, sources: Mapping[int, int], item: Item = lambda _, __: 0) -> None:
        super().__init__(table.rows, sources, SCALAR, item)

    def satisfies(self, guards: Iterable[int]) -> bool:
        """Return whether all guards hold here."""
        return all(bool(self[g]) for g in guards)


class SizeGrid:
    """Points of a graph's sizes and ints, and the guards that hold at them.

    `names` maps the table's rows of sizes and ints to their names. `sizes` lists values by name for a Cartesian
    product; `points` lists complete sets of values instead, where an omitted size has its largest value.
    """

    def __init__(
        self,
        table: ExpressionTable,
        names: Mapping[int, str],
        sizes: NamedSizes,
        points: Sequence[Mapping[str, int]],
        largest_dim: int,
    ) -> None:
        self.table, self.names, self.sizes, self.points = table, names, sizes, points
        self.largest_dim = largest_dim  # of all tensors: the bound of ints that become sizes
        self.columns: dict[int, np.ndarray] = {}
        self.complete = False  # whether the program allows no other points
        self.anchors: set[int] = set()  # guards that joined or pinned sizes
        self._values = RowValues(table.rows, self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 1

    def largest(self) -> Point:
        """Return the point where every size has its largest value, and every int its first."""
        values = {}
        for row, name in self.names.items():
            high = self._largest(row)
            values[row] = self.sizes.get(name, [0])[0] if high is None else high
        return Point(self.table, values)

    def point(self, k: int) -> Point:
        """Return point k of the grid."""
        return Point(self.table, {row: int(values[k]) for row, values in self.columns.items()})

    def lay_out(self, guards: Sequence[int], deciding: Iterable[int] = ()) -> None:
        """Fill the columns, given the guards of the shapes at the largest sizes.

        `deciding` has further sources: ints and data that guards depend on. Sizes that are probably equal, because
        products of them are, get points where they vary separately, and points where they vary as one.
        """
        sources = {*self.names, *deciding}
        classes = SizeClasses(sources)
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
            for row, name in self.names.items():
                values = [p.get(name, self._largest(row) or 0) for p in self.points]
                self.columns[row] = np.array(values, np.int64)
            self.complete = False
        else:
            self.columns, self.complete = self._product(classes, deciding)
            if classes.join_products(self.table, guards):
                more, _ = self._product(classes, deciding)
                self.columns = {row: np.concatenate([values, more[row]]) for row, values in self.columns.items()}
        self.forget()

    def forget(self) -> None:
        """Drop the arrays that were computed from the columns."""
        self._values = RowValues(self.table.rows, self.columns)

    def knows(self, row: int) -> bool:
        """Return whether a row depends on sizes only, not on unknown data."""
        try:
            self._values[row]
        except KeyError:
            return False
        return True

    def mask(self, guards: Iterable[int]) -> np.ndarray:
        """Return the points where all guards hold; unknown data counts as zeros, as when guards were traced."""
        mask = np.ones(len(self), bool)
        for g in guards:
            values = self._values
            if not self.knows(g):
                data = (row for row in with_operands(self.table.rows, [g]) if self.table.rows[row][0] == "item")
                values = RowValues(
                    self.table.rows, {**self.columns, **dict.fromkeys(data, np.zeros(len(self), np.int64))}
                )
            mask &= np.asarray(values[g], bool)
        return mask

    def distinguishing(self, guards: Sequence[int], inside: np.ndarray) -> tuple[int, ...]:
        """Return the guards that distinguish points `inside`; the others hold at all of them or none."""
        needed_guards = list(guards)
        for g in guards:
            others = [x for x in needed_guards if x != g]
            if np.array_equal(self.mask(needed_guards) & inside, self.mask(others) & inside) and self.knows(g):
                needed_guards = others
        return tuple(needed_guards)

    def largest_value(self, size: Size, trace: Trace) -> int:
        """Return the largest value of a size where the trace's guards hold."""
        here = int(plain_value(size))
        if self.columns and self.knows(size.row):
            mask = self.mask(trace.guards)
            return int(np.max(np.broadcast_to(self._values[size.row], mask.shape)[mask], initial=here))
        high = self._range(size.row, trace)[1]
        return here if high == BIG else int(high)

    def _range(self, row: int, trace: Trace) -> Range:
        """Return the range of a row, from the trace's ranges of its operands."""
        ranges: dict[int, Range] = {}
        for k in with_operands(self.table.rows, [row]):
            op, a, b = self.table.rows[k]
            bounds = trace.ranges.get(k)
            if bounds is None:
                bounds = result_range(op, ranges[int(a)], ranges[int(b)]) if op in SCALAR else self.table.ranges[k]
            ranges[k] = bounds
        return ranges[row]

    def _largest(self, row: int) -> int | None:
        """Return the largest value of a size; None for an int."""
        return int(self.table.ranges[row][1]) if self.table.rows[row][0] == "size" else None

    def _product(self, classes: SizeClasses, deciding: Iterable[int]) -> tuple[dict[int, np.ndarray], bool]:
        """Return the columns of the product of all values, and whether the program allows no other values."""
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
        if total <= MAX_POINTS:
            points = np.array(list(itertools.product(*axes)), np.int64).reshape(total, len(axes))
        else:
            points, complete = sample(axes), False
        return {row: points[:, k] for k, rows in enumerate(members.values()) for row in rows}, complete

    def _values_of_ints(self) -> list[int]:
        """Return values of an int that sizes depend on, up to the largest dimension in both directions."""
        values = pick(range(self.largest_dim + 1), MAX_INTS)
        return sorted({v for n in values for v in (-n, n)}, key=lambda v: (abs(v), v))


def sample(axes: Sequence[Sequence[int]]) -> np.ndarray:
    """Return at most 2 × MAX_POINTS points, in order: random ones, and a coarse grid if it is not too large.

    They include the smallest and the largest values of every axis, also of all axes at once.
    """
    rng = np.random.default_rng(0)
    picked = [pick(axis, MAX_VALUES) for axis in axes]
    count = max(map(len, picked))
    along = [[p[min(k, len(p) - 1)] for p in picked] for k in range(count)]
    back = [[p[max(len(p) - 1 - k, 0)] for p in picked] for k in range(count)]
    dense = [rng.choice(p, MAX_POINTS // 8) for p in picked]  # mostly small values, like the bounds of kernels
    even = [np.array(axis)[rng.integers(len(axis), size=MAX_POINTS // 8)] for axis in axes]
    parts = [np.array(along), np.array(back), np.stack(dense, 1), np.stack(even, 1)]
    each = int(MAX_POINTS ** (1 / sum(len(axis) > 1 for axis in axes)))
    if each >= 4:
        parts.append(np.array(list(itertools.product(*(pick(axis, each) for axis in axes)))))
    return np.unique(np.concatenate(parts).astype(np.int64), axis=0)


def pick(axis: Sequence[int], count: int) -> list[int]:
    """Return `count` values of an axis: the largest, the smallest, powers of two and their neighbours, and others."""
    if len(axis) <= count:
        return list(axis)
    values = axis if isinstance(axis, range) else set(axis)
    powers = [1 << k for k in range(axis[-1].bit_length())]
    around = [n for power in powers for n in (power - 1, power + 1)]
    between = [axis[round(k * (len(axis) - 1) / count)] for k in range(count)]
    ordered = [*axis[:-4:-1], *axis[: count // 4], *powers, *around, *between, *axis]
    return sorted(itertools.islice(dict.fromkeys(n for n in ordered if n in values), count))
