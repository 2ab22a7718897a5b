"""Results compared with expected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SCALE = 1e-4  # the default absolute tolerance, as a share of the largest expected value


@dataclass(frozen=True, slots=True)
class ArrayDifference:
    """The distance of a result from the expected array; `problem` says why they cannot be compared at all."""

    wrong: int
    total: int
    index: tuple[int, ...] = ()  # of the worst element
    got: float = 0.0
    expected: float = 0.0
    problem: str = ""

    @property
    def error(self) -> float:
        return 0.0 if self.got == self.expected else abs(self.got - self.expected)


def scale_of(expected: np.ndarray) -> float:
    """Return the largest finite magnitude, or 0 without finite elements."""
    wide = expected.astype(np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))


def compare(result: Any, expected: np.ndarray, atol: float | None, rtol: float) -> ArrayDifference:
    """Compare element by element: floats within `atol + rtol × |expected|`, NaN equal to NaN; everything else exactly.

    The default `atol` is a share of the expected array's own scale: zeros must be exact where all are expected to be 0.
    """
    got = np.asarray(result)
    if got.dtype.kind not in "fiub":
        return ArrayDifference(1, 1, problem=f"{result!r} cannot be compared with an array")
    if got.shape != expected.shape:
        return ArrayDifference(got.size, got.size, problem=f"shape {list(got.shape)}, expected {list(expected.shape)}")
    if not got.size:
        return ArrayDifference(0, 0)
    if got.dtype.kind == "f" or expected.dtype.kind == "f":
        a, b = got.astype(np.float64), expected.astype(np.float64)
        absolute = SCALE * scale_of(expected) if atol is None else atol
        good = np.isclose(a, b, rtol=rtol, atol=absolute, equal_nan=True)
        with np.errstate(invalid="ignore"):
            distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        distance = np.where(np.isnan(distance), np.inf, distance)
    else:
        a, b = got, expected
        good = np.asarray(a == b)
        distance = np.abs(a.astype(np.float64) - b.astype(np.float64))
    ranked = distance if good.all() else np.where(good, -1.0, distance)
    index = tuple(int(k) for k in np.unravel_index(int(np.argmax(ranked)), ranked.shape))
    return ArrayDifference(int((~good).sum()), good.size, index, float(a[index]), float(b[index]))
