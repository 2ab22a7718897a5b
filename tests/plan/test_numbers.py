"""Rows as numbers: one set of sizes, many at once, and a point of the planner give the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ptegpu.compiler.size_grid import Point
from ptegpu.plan.numbers import RowValues, chooser, compile_rows, with_operands
from ptegpu.plan.plan import OPERATORS, Row
from ptegpu.sizes import ExpressionTable

VALUES = (-7, -1, 0, 1, 2, 3, 12)
RIGHT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "div": lambda a, b: a / b if b else 0.0,
    "min": min,
    "max": max,
    "ceil": lambda a, _: a,
    "floor": lambda a, _: a,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def unread(position: int, element: int) -> int:
    raise AssertionError(f"element {element} of input {position} is read")


@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator_in_every_way(op: str) -> None:
    rows: tuple[Row, ...] = (("int", 0, 0), ("int", 1, 0), (op, 0, 1))
    pairs = list(itertools.product(VALUES, VALUES))
    expected = [RIGHT[op](a, b) for a, b in pairs]
    evaluate = compile_rows(rows, [2])
    assert expected == [evaluate([a, b], unread)[0] for a, b in pairs]
    first, second = np.array(pairs, np.int64).T
    np.testing.assert_array_equal(expected, RowValues(rows, {0: first, 1: second})[2])
    table = ExpressionTable()
    places = [table.add("int", k, 0, (-(2**31), 2**31)) for k in (0, 1)]
    row = table.add(op, *places)
    assert expected == [Point(table, {0: a, 1: b})[row] for a, b in pairs]


def test_floats_become_whole_numbers_again() -> None:
    rows: tuple[Row, ...] = (("size", 0, 1), ("const", 4, 0), ("div", 0, 1), ("ceil", 2, 2), ("floor", 2, 2))
    for n, up, down in ((0, 0, 0), (7, 2, 1), (8, 2, 2)):
        assert (up, down) == compile_rows(rows, [3, 4])([(1, n)], unread)
    assert [[0, 2, 2], [0, 1, 2]] == [RowValues(rows, {0: np.array([0, 7, 8])})[k].tolist() for k in (3, 4)]


def test_elements_are_read_where_a_row_says() -> None:
    rows: tuple[Row, ...] = (("int", 0, 0), ("const", 1, 0), ("add", 0, 1), ("item", 2, 1), ("mul", 3, 3))
    data = [5, 6, 7]
    assert (49,) == compile_rows(rows, [4])([1, (3,)], lambda position, element: data[element] if position == 1 else 0)
    with pytest.raises(KeyError):  # many sizes at once have no data
        RowValues(rows, {0: np.array([0, 1])})[4]


def test_only_what_is_needed_is_evaluated() -> None:
    rows: tuple[Row, ...] = (("size", 0, 0), ("const", 2, 0), ("mul", 0, 1), ("item", 0, 5), ("add", 2, 1))
    assert [0, 1, 2, 4] == with_operands(rows, [4])
    assert (8, 3) == compile_rows(rows, [4, 0])([(3,)], unread)
    assert () == compile_rows(rows, [])([], unread)


def test_the_first_alternative_that_holds_is_chosen() -> None:
    choose = chooser([((0, 1), (2,), ()), ((3,), (0,)), ((),), ()])
    assert (0, 1, 0, -1) == choose([1, 1, 0, 0])
    assert (1, 0, 0, -1) == choose([0, 1, 5, 2])
    assert (2, -1, 0, -1) == choose([0, 1, 0, 0])
    choose_of_many = chooser([tuple((k,) for k in range(5000)), (tuple(range(5000)),)])
    assert (4321, -1) == choose_of_many([int(k >= 4321) for k in range(5000)])


def test_alternatives_after_the_first_that_holds_are_not_looked_at() -> None:
    places: list[int] = []

    class Numbers(list[int]):
        def __getitem__(self, k: Any) -> Any:
            places.append(k)
            return super().__getitem__(k)

    assert (1, 0) == chooser([((0,), (1, 2), (3,)), ((2,), (3,))])(Numbers([0, 1, 1, 1]))
    assert [0, 1, 2, 2] == places
