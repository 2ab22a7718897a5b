"""Samples of sizes to look at, where there are too many to look at all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

MAX_POINTS = 16384  # sets of sizes that are looked at
PICKED = 64  # values of one size, where not all are looked at


def every(axes: Sequence[Sequence[int]], total: int) -> np.ndarray:
    """Return all points of a grid, (total, axes)."""
    return np.array(list(itertools.product(*axes)), np.int64).reshape(total, len(axes))


def sample(axes: Sequence[Sequence[int]]) -> np.ndarray:
    """Return at most 2 × MAX_POINTS points, in order: a coarse grid, if there is room for one, and random points.

    The smallest values and the largest of every axis are among them, also all together.
    """
    rng = np.random.default_rng(0)
    picked = [pick(axis, PICKED) for axis in axes]
    count = max(map(len, picked))
    along = [[p[min(k, len(p) - 1)] for p in picked] for k in range(count)]
    back = [[p[max(len(p) - 1 - k, 0)] for p in picked] for k in range(count)]
    dense = [rng.choice(p, MAX_POINTS // 8) for p in picked]  # where values are small, as the bounds of kernels are
    even = [np.array(axis)[rng.integers(len(axis), size=MAX_POINTS // 8)] for axis in axes]
    parts = [np.array(along), np.array(back), np.stack(dense, 1), np.stack(even, 1)]
    each = int(MAX_POINTS ** (1 / sum(len(axis) > 1 for axis in axes)))
    if each >= 4:
        parts.append(np.array(list(itertools.product(*(pick(axis, each) for axis in axes)))))
    return np.unique(np.concatenate(parts).astype(np.int64), axis=0)


def pick(axis: Sequence[int], count: int) -> list[int]:
    """Return `count` values of an axis: the largest, the smallest, powers of two and their neighbours, others."""
    if len(axis) <= count:
        return list(axis)
    known = axis if isinstance(axis, range) else set(axis)
    powers = [1 << k for k in range(axis[-1].bit_length())]
    around = [n for power in powers for n in (power - 1, power + 1)]
    between = [axis[round(k * (len(axis) - 1) / count)] for k in range(count)]
    ordered = [*axis[:-4:-1], *axis[: count // 4], *powers, *around, *between, *axis]
    return sorted(itertools.islice(dict.fromkeys(n for n in ordered if n in known), count))
