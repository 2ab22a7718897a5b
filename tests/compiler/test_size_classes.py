"""Sizes that hang together by what guards say of their products."""

from __future__ import annotations

from ptegpu.compiler.size_classes import SizeClasses
from ptegpu.sizes import ExpressionTable


def product(table: ExpressionTable, *rows: int) -> int:
    total, *rest = rows
    for row in rest:
        total = table.add("mul", total, row)
    return total


def test_factors_on_both_sides_cancel_out_and_others_of_the_same_largest_value_are_joined() -> None:
    """x (200, 300, 4) and y (200, 50): x[0]·x[1]·4 = y[0]·x[1]·x[2], as a view of a result tells."""
    table = ExpressionTable()
    b, t, width = (table.add("size", 0, d, (0, n)) for d, n in enumerate((200, 300, 4)))
    c, s = (table.add("size", 1, d, (0, n)) for d, n in enumerate((200, 50)))
    guard = table.add("eq", product(table, b, t, table.const(4)), product(table, c, t, width))
    classes = SizeClasses((b, t, width, c, s))
    assert classes.join_products(table, [guard])
    assert {(b, c), (t,), (width,), (s,)} == set(map(tuple, classes.members().values()))
    assert {width} == classes.fixed()
    assert not classes.join_products(table, [guard])


def test_products_of_other_largest_values_and_other_comparisons_tell_nothing() -> None:
    table = ExpressionTable()
    a, b, c = (table.add("size", 0, d, (0, n)) for d, n in enumerate((6, 8, 48)))
    classes = SizeClasses((a, b, c))
    guards = [
        table.add("eq", product(table, a, b), c),
        table.add("ne", product(table, a, table.const(8)), product(table, a, b)),
        table.add("eq", table.add("floordiv", c, b), a),
    ]
    assert not classes.join_products(table, guards)
