"""The points at which a plan is made: what a grid always contains, and which sizes vary together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptegpu.compiler import size_grid as sampling
from ptegpu.compiler.size_grid import MAX_INTS, Point, SizeGrid
from ptegpu.sizes import ExpressionTable, Trace

INT_RANGE = (-(2**31), 2**31 - 1)


def grid_of(
    shapes: Sequence[Sequence[int]], ints: int = 0, sizes: Mapping[str, Sequence[int]] | None = None, **more: Any
) -> tuple[SizeGrid, list[list[int]], list[int]]:
    """A grid of inputs x0, x1, … with these largest shapes and of ints i0, i1, …, with the rows of both."""
    table, names = ExpressionTable(), dict[int, str]()
    dims = [[table.add("size", k, d, (0, n)) for d, n in enumerate(shape)] for k, shape in enumerate(shapes)]
    names |= {row: f"x{k}[{d}]" for k, rows in enumerate(dims) for d, row in enumerate(rows)}
    values = [table.add("int", len(shapes) + k, 0, INT_RANGE) for k in range(ints)]
    names |= {row: f"i{k}" for k, row in enumerate(values)}
    largest = max(itertools.chain(*shapes), default=0)
    return SizeGrid(table, names, sizes or {}, more.pop("points", ()), largest), dims, values


def product(table: ExpressionTable, *rows: int) -> int:
    total, *rest = rows
    for row in rest:
        total = table.add("mul", total, row)
    return total


def points(grid: SizeGrid, *rows: int) -> list[tuple[int, ...]]:
    return list(zip(*(grid.columns[row].tolist() for row in rows), strict=True))


@given(st.lists(st.integers(0, 20000), min_size=1, max_size=4))
@example([16384, 16384])
@example([512, 512, 64])
@settings(max_examples=40)
def test_a_grid_has_the_small_sizes_and_the_maximum_of_every_axis_and_is_not_too_large(shape: list[int]) -> None:
    grid, (rows,), _ = grid_of([shape])
    grid.lay_out([])
    assert grid.complete == (math.prod(n + 1 for n in shape) <= sampling.MAX_POINTS)
    assert 1 <= len(grid) <= 2 * sampling.MAX_POINTS
    assert {tuple(shape), (0,) * len(shape)} <= set(points(grid, *rows))
    for row, high in zip(rows, shape, strict=True):
        values = set(grid.columns[row].tolist())
        assert {*range(min(high + 1, 16)), high} <= values <= set(range(high + 1))
    assert dict(zip(rows, shape, strict=True)) == {row: grid.largest()[row] for row in rows}


@pytest.mark.parametrize(
    "axes",
    [
        [range(513), range(513), [64]],  # Linear on x (b ≤ 512, t ≤ 512, 64)
        [range(513), range(513)],
        [range(100)] * 3,
        [range(50)] * 7,
        [range(20), range(16385), [1, 2, 4]],
        [list(range(3, 40000, 7)), [9]],
    ],
    ids=["linear", "two", "three", "seven", "unequal", "named"],
)
def test_a_sample_has_small_sizes_and_the_largest_of_every_axis(axes: list[Sequence[int]]) -> None:
    sample = sampling.sample(axes)
    rows = set(map(tuple, sample.tolist()))
    assert len(rows) == len(sample) <= 2 * sampling.MAX_POINTS
    assert {tuple(axis[0] for axis in axes), tuple(axis[-1] for axis in axes)} <= rows
    for k, axis in enumerate(axes):
        assert set(axis[:16]) | {axis[-1]} <= set(sample[:, k].tolist()) <= set(axis)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300))
@settings(max_examples=30)
def test_sizes_that_a_guard_calls_equal_vary_together_within_the_smaller_bound(a: int, b: int, other: int) -> None:
    grid, ((x, free), (y,)), _ = grid_of([[a, other], [b]])
    guard = grid.table.add("eq", x, y)
    grid.lay_out([guard])
    np.testing.assert_array_equal(grid.columns[x], grid.columns[y])
    assert set(range(min(16, a + 1, b + 1))) | {min(a, b)} <= set(grid.columns[x].tolist())
    assert max(grid.columns[x]) == min(a, b) and max(grid.columns[free]) == other
    assert {guard} == grid.anchors


def test_a_size_that_must_have_a_value_has_it_everywhere() -> None:
    grid, ((x, width),), _ = grid_of([[9, 64]])
    guard = grid.table.add("eq", width, grid.table.const(64))
    grid.lay_out([guard])
    assert [(n, 64) for n in range(10)] == points(grid, x, width)
    assert grid.complete and {guard} == grid.anchors and grid.mask([guard]).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 8))
@settings(max_examples=30)
def test_sizes_that_hang_together_through_a_view_come_together_and_apart(b: int, t: int, width: int) -> None:
    """x (b, t, width) and y (b, t) with x.view(b · t, width): the products x[0]·x[1] and y[0]·y[1] are equal."""
    grid, (x, y), _ = grid_of([[b, t, width], [b, t]])
    with patch.object(sampling, "MAX_POINTS", 512):
        view = grid.table.add("eq", product(grid.table, *x[:2]), product(grid.table, *y))
        grid.lay_out([view])
        both = points(grid, *x[:2], *y)
        assert any((r, c) != (i, j) for r, c, i, j in both)
        joined = {(r, c) for r, c, i, j in both if (r, c) == (i, j)}
        assert {(0, 0), (1, 1), (b, t)} <= joined
        assert (b, t, b, t) in both[-1:] or (b, t) in joined
        assert grid.mask([view]).sum() >= len(joined)
    assert not grid.anchors  # the guard names no size itself


def test_products_of_constants_pin_their_factors_in_a_second_part_of_the_grid() -> None:
    """x (rows, 4, 8) viewed as (rows, 32): 4 · 8 = 32 only where both are as large as they can be."""
    grid, ((rows, a, b),), _ = grid_of([[3, 4, 8]])
    grid.lay_out([grid.table.add("eq", product(grid.table, a, b), grid.table.const(32))])
    total = 4 * 5 * 9
    assert len(grid) == total + 4
    assert [(n, 4, 8) for n in range(4)] == points(grid, rows, a, b)[total:]


@given(st.lists(st.integers(-3, 400), min_size=1, max_size=20))
@settings(max_examples=30)
def test_named_sizes_are_the_only_ones_within_their_bounds(values: list[int]) -> None:
    grid, ((x, y),), _ = grid_of([[200, 3]], sizes={"x0[0]": values})
    grid.lay_out([])
    inside = {v for v in values if 0 <= v <= 200}
    assert set(itertools.product(inside, range(4))) == set(points(grid, x, y))
    assert not grid.complete


def test_points_are_taken_as_they_are_and_fill_up_with_the_largest_sizes() -> None:
    grid, ((x, y),), (i,) = grid_of([[7, 5]], ints=1, points=[{"x0[0]": 2, "i0": -4}, {"x0[1]": 0}])
    grid.lay_out([])
    assert [(2, 5, -4), (7, 0, 0)] == points(grid, x, y, i)
    assert not grid.complete
    assert (7, 5, 0) == tuple(grid.largest()[row] for row in (x, y, i))


def test_ints_are_zero_or_as_named_until_they_decide() -> None:
    grid, ((x,),), (i, j) = grid_of([[2]], ints=2, sizes={"i1": [5, 6]})
    grid.lay_out([])
    assert [(n, 0, k) for n in range(3) for k in (5, 6)] == points(grid, x, i, j)
    grid.lay_out([], {i})
    assert {0, 1, -1, 2, -2} == set(grid.columns[i].tolist())
    wide, _, (k,) = grid_of([[100000]], ints=1)
    wide.lay_out([], {k})
    values = wide.columns[k]
    assert {0, 1, -1, 100000, -100000} <= set(values.tolist())
    assert len(set(values.tolist())) <= 2 * MAX_INTS


def test_guards_that_tell_no_points_apart_are_dropped() -> None:
    grid, ((x,),), _ = grid_of([[20]])
    grid.lay_out([])
    low, lower, any_size = (grid.table.add("lt", x, grid.table.const(n)) for n in (9, 5, 21))
    assert (lower,) == grid.distinguishing([low, lower, any_size], np.ones(21, bool))
    assert () == grid.distinguishing([low, any_size], np.asarray(grid.columns[x] < 9))


def unread(position: int, element: int) -> int:
    raise AssertionError(f"element {element} of input {position} is read")


def test_a_point_reads_data_only_where_a_row_needs_it() -> None:
    grid, ((x,),), _ = grid_of([[20]])
    table = grid.table
    element = table.add("item", table.const(3), 1, INT_RANGE)
    more = table.add("add", x, table.const(1))
    point = Point(table, {x: 4}, unread)
    assert 5 == point[more] and point.satisfies([table.add("eq", more, table.const(5))])
    data_point = Point(table, {x: 4}, lambda position, element: 10 * element + position)
    assert 31 == data_point[element] and not data_point.satisfies([table.add("lt", element, x)])
    grid.lay_out([])
    assert grid.knows(more) and not grid.knows(element)
    assert grid.mask([table.add("eq", element, table.const(0))]).all()  # unknown data counts as zeros


def test_the_most_of_a_size_is_within_the_guards_of_its_trace() -> None:
    grid, ((x,),), _ = grid_of([[20]])
    trace = Trace(grid.table)
    size: Any = trace.at(x, 3)
    assert size < 12
    assert 22 == grid.largest_value(size * 2, trace)  # by ranges
    grid.lay_out([])
    assert 22 == grid.largest_value(size * 2, trace)  # by points
