"""Results against expected ones."""

from __future__ import annotations

import numpy as np
import pytest

from ptegpu.cli.compare import ArrayDifference, compare

NAN, INF = float("nan"), float("inf")


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("got", "expected", "wrong"),
    [
        (floats(1, 2), floats(1, 2.00005), 0),
        (floats(1, 2), floats(1, 2.1), 1),
        (floats(NAN, INF, -INF), floats(NAN, INF, -INF), 0),
        (floats(NAN, INF), floats(0, -INF), 2),
        (np.array([2**60]), np.array([2**60 + 1]), 1),
        (np.array([True, False]), np.array([True, True]), 1),
        (7, np.array(7), 0),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0),
    ],
)
def test_how_many_are_wrong(got: object, expected: np.ndarray, wrong: int) -> None:
    assert compare(got, expected, 1e-4, 0.0).wrong == wrong


def test_the_worst_wrong_element_is_found() -> None:
    got, expected = np.array([[1e6, 1.0], [0.0, 0.0]]), np.array([[1e6 + 5, 1.5], [0.0, 0.2]])
    difference = compare(got, expected, 0.01, 1e-4)
    assert difference == ArrayDifference(2, 4, (0, 1), 1.0, 1.5)
    assert difference.error == 0.5


def test_the_worst_of_equal_ones() -> None:
    difference = compare(floats(1, 2, 3), floats(1, 2.25, 3), 1.0, 0.0)
    assert (difference.wrong, difference.index, difference.error) == (0, (1,), 0.25)


def test_what_cannot_be_compared() -> None:
    assert compare(floats(1, 2), floats(1), 1, 1).problem == "shape [2], expected [1]"
    assert compare("text", floats(1), 1, 1).problem == "'text' cannot be compared with an array"


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e20])
def test_the_tolerance_follows_the_expected_scale(scale: float) -> None:
    expected = np.random.default_rng(0).standard_normal(100).astype(np.float32) * np.float32(scale)
    assert compare(expected, expected, None, 0.0).wrong == 0
    assert compare(expected * np.float32(1 + 1e-6), expected, None, 0.0).wrong == 0
    assert compare(np.zeros_like(expected), expected, None, 1e-3).wrong > 90
    assert compare(expected * np.float32(1.05), expected, None, 1e-3).wrong > 90
    assert compare(np.roll(expected, 1), expected, None, 1e-3).wrong > 90
    assert compare(np.zeros_like(expected), expected, 1e30, 0.0).wrong == 0  # as asked for


def test_expected_zeros_are_exact_unless_asked() -> None:
    zeros = np.zeros(3, np.float32)
    assert compare(zeros, zeros, None, 1e-3).wrong == 0
    assert compare(floats(0, 1e-38, 0), zeros, None, 1e-3).wrong == 1
    assert compare(floats(0, 1e-6, 0), zeros, 1e-5, 1e-3).wrong == 0
    assert compare(floats(NAN, INF), floats(NAN, INF), None, 1e-3).wrong == 0
    assert compare(floats(NAN, 0), floats(NAN, INF), None, 1e-3).wrong == 1
