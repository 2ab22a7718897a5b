"""Traced sizes: arithmetic, the guards that comparisons record, and a guard for every conversion to a number."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ptegpu.compiler.size_grid import Point
from ptegpu.sizes import ExpressionTable, Size, Trace, cached, largest, plain_value, real, smallest

N, M = 12, 5
RANGES = ((0, 40), (1, 9))


def traced(n: int = N, m: int = M) -> tuple[Trace, Size, Size]:
    trace = Trace(ExpressionTable(RANGES))
    return trace, trace.source(0, n), trace.source(1, m)


def texts(trace: Trace) -> list[tuple[str, Any, Any]]:
    """Return the guards, with constants as numbers."""
    rows = trace.table.rows

    def plain(row: int | float) -> Any:
        op, a, _ = rows[int(row)]
        return a if op == "const" else f"{op} {a}"

    return [(rows[g][0], plain(rows[g][1]), plain(rows[g][2])) for g in trace.guards]


FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda n, m: n + m + 3 + (2 - n),
    "products": lambda n, m: n * m * 2 - m * 0,
    "rounded up": lambda n, m: -(-n // 4) * 4 + n % m,
    "shifts": lambda n, m: (n << 2) + (n >> 1),
    "extremes": lambda n, m: largest(smallest(n, m), 3) + smallest(7, n),
    "a share": lambda n, m: math.ceil(real(n) / m) + math.floor(n / 4),
    "a branch": lambda n, m: n - m if n > m else m - n,
    "bits": lambda n, m: n.bit_length() * m,
    "a magnitude": lambda n, m: abs(m - n),
    "an item": lambda n, m: [10, 20, 30, 40, 50, 60, 70, 80, 90, 100][m] + n,
    "a key": lambda n, m: {5: 1, 3: 2}.get(m, 0) * n,
    "a text": lambda n, m: len(f"{m}") * n,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_wherever_the_guards_hold_the_expression_is_the_result(name: str) -> None:
    formula = FORMULAS[name]
    trace, n, m = traced()
    result = formula(n, m)
    row = trace.row(result)
    total = 0
    for a, b in itertools.product(range(41), range(1, 10)):
        point = Point(trace.table, dict(zip(trace.table.sources, (a, b), strict=True)))
        if all(point[g] for g in trace.guards):
            assert formula(a, b) == point[row], (a, b)
            total += 1
    assert formula(N, M) == plain_value(result)
    assert total >= 1


def test_arithmetic_records_nothing() -> None:
    trace, n, m = traced()
    _ = (n + m) * 2 - n // 3, n % 4, smallest(n, m), real(n)
    assert {} == trace.guards


@pytest.mark.parametrize(
    "compare, expected",
    [
        (lambda n, m: n > 3, ("lt", 3, "source 0")),
        (lambda n, m: n > 30, ("ge", 30, "source 0")),
        (lambda n, m: n <= m, ("lt", "source 1", "source 0")),
        (lambda n, m: n == m, ("ne", "source 0", "source 1")),
        (lambda n, m: n != m, ("ne", "source 0", "source 1")),
        (lambda n, m: bool(n), ("ne", "source 0", 0)),
        (lambda n, m: n in (1, 2), ("ne", "source 0", 1)),
    ],
)
def test_a_comparison_is_a_guard(compare: Callable[[Any, Any], bool], expected: tuple[str, Any, Any]) -> None:
    trace, n, m = traced()
    assert compare(N, M) == compare(n, m)
    assert expected == texts(trace)[0]


@pytest.mark.parametrize(
    "use", [int, hash, str, repr, float, lambda n: f"{n:,}", range, lambda n: [0] * n, lambda n: {n: 1}]
)
def test_a_number_that_is_taken_is_a_guard(use: Callable[[Any], object]) -> None:
    trace, n, _ = traced()
    use(n)
    assert [("eq", "source 0", N)] == texts(trace)


def test_what_ranges_decide_is_no_guard() -> None:
    trace, n, m = traced()
    assert n >= 0 and n <= 40 and m > 0 and not n < -1 and n + m <= 49 and n == n and n % 4 < 4
    assert {} == trace.guards
    assert n > 10 and n > 9 and n + 1 > 11  # the first implies the second; sums have no known range
    assert [("lt", 10, "source 0")] == texts(trace)[:1]
    assert 2 == len(trace.guards)


def test_division_by_zero_is_one_and_a_guard() -> None:
    trace, n, _ = traced(n=0)
    with pytest.raises(ZeroDivisionError):
        _ = 7 // n
    assert [("eq", "source 0", 0)] == texts(trace)
    trace, n, _ = traced()
    _ = 7 // n
    assert [("ne", "source 0", 0)] == texts(trace)


def test_a_size_is_no_int() -> None:
    _, n, _ = traced()
    assert not isinstance(n, int)
    assert "1.5" != n
    with pytest.raises(TypeError):
        _ = n + "1"  # type: ignore[operator]
    with pytest.raises(TypeError):
        range(n / 5)


def test_makers_of_kernels_see_plain_numbers() -> None:
    values: list[Any] = []

    @cached(maxsize=4)
    def make(size: int, pair: tuple[int, int]) -> int:
        values.append((type(size), type(pair[0]), pair))
        return size

    trace, n, m = traced()
    assert N == make(n, (m, 3)) == make(N, (M, 3))
    assert [(int, int, (M, 3))] == values
    assert {("eq", "source 0", N), ("eq", "source 1", M)} == set(texts(trace))


def test_guards_are_left_without_assertions() -> None:
    code = """
from ptegpu.sizes import ExpressionTable, Trace
trace = Trace(ExpressionTable(((0, 40),)))
trace.source(0, 12).bit_length()
print(len(trace.guards), __debug__)
"""
    ended = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert "2 False" == ended.stdout.strip()
