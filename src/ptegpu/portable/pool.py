"""Pooling over the last two or three dimensions, batched or not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ShapeError
from .convolution import Sizes, Subscript, per_dimension, windows
from .promotion import FLOAT64, accumulator
from .registry import Array, afford, portable


def _counts(sizes: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool) -> list[int]:
    """Return the windows per dimension; in ceil mode, the last may extend past the end but must start before it."""
    counts = []
    for n, k, s, p, d in zip(sizes, kernel, stride, padding, dilation):
        if 2 * p > k:
            raise ShapeError(f"padding {p} is more than half of kernel size {k}")
        room = n + 2 * p - d * (k - 1) - 1
        count = (room + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        if count < 1:
            raise ShapeError(f"a kernel of {k} is larger than the input of {n}")
        counts.append(count)
    return counts


def _pool_windows(
    x: Array, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool, fill: float
) -> Array:
    """Return windows over the last dimensions: (…, *positions, kernel)."""
    rank = len(kernel)
    sizes = x.shape[-rank:]
    counts = _counts(sizes, kernel, stride, padding, dilation, ceil_mode)
    after = [
        max((c - 1) * s + d * (k - 1) + 1 - n - p, 0)
        for c, n, k, s, p, d in zip(counts, sizes, kernel, stride, padding, dilation)
    ]
    widths = [(0, 0)] * (x.ndim - rank) + list(zip(padding, after))
    afford(math.prod([*x.shape[:-rank], *counts, *kernel]) * x.itemsize)
    taps = windows(np.pad(x, widths, constant_values=fill), kernel, stride, dilation)
    in_range: Subscript = (..., *map(slice, counts), *[slice(None)] * rank)
    taps = taps[in_range]
    return taps.reshape(*taps.shape[:-rank], -1)


def _define(rank: int) -> None:

    @portable(f"aten.avg_pool{rank}d.default")
    def avg_pool(
        x: Array,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,) * rank,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        kernel, padding = per_dimension(kernel_size, rank), per_dimension(padding, rank)
        step = per_dimension(stride, rank) or kernel
        once = (1,) * rank
        total = _pool_windows(x, kernel, step, padding, once, ceil_mode, 0).sum(-1, dtype=accumulator(x.dtype))
        if divisor_override is not None:
            return total / divisor_override
        if count_include_pad:
            counted = np.ones([n + 2 * p for n, p in zip(x.shape[-rank:], padding)])
            extra = [k * s for k, s in zip(kernel, step)]  # more than a window can extend past the end in ceil mode
            covered = windows(np.pad(counted, [(0, e) for e in extra]), kernel, step, once)
            count = covered.sum(tuple(range(-rank, 0)))[tuple(map(slice, total.shape[-rank:]))]
        else:
            count = _pool_windows(np.ones(x.shape[-rank:]), kernel, step, padding, once, ceil_mode, 0).sum(-1)
        return total / count

    @portable(f"aten.max_pool{rank}d_with_indices.default")
    def max_pool_with_indices(
        x: Array,
        kernel_size: Sizes,
        stride: Sizes = (),
        padding: Sizes = (0,) * rank,
        dilation: Sizes = (1,) * rank,
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        """Return maxima, and their flat positions in each plane or volume."""
        kernel, padding, dilation = (per_dimension(v, rank) for v in (kernel_size, padding, dilation))
        step = per_dimension(stride, rank) or kernel
        sizes = x.shape[-rank:]
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        shared = (kernel, step, padding, dilation, ceil_mode)
        taps = _pool_windows(x, *shared, lowest)
        inside = _pool_windows(np.ones(sizes, bool), *shared, False)
        best = taps.argmax(-1)
        is_inside = np.take_along_axis(np.broadcast_to(inside, taps.shape), best[..., None], -1)[..., 0]
        best = np.where(is_inside, best, inside.argmax(-1))  # never a padded position, even if all are the lowest
        starts = np.meshgrid(
            *(np.arange(n) * s - p for n, s, p in zip(best.shape[-rank:], step, padding)), indexing="ij", sparse=True
        )
        places: Array = np.zeros_like(best)
        for size, start, offset, d in zip(sizes, starts, np.unravel_index(best, kernel), dilation):
            places = places * size + start + offset * d
        return np.take_along_axis(taps, best[..., None], -1)[..., 0], places

    @portable(f"aten._adaptive_avg_pool{rank}d.default", sizes=lambda x, size: [*x.shape[:-rank], *size])
    def adaptive_avg_pool(x: Array, output_size: Sizes) -> Array:
        means = x.astype(FLOAT64)
        for axis, count in enumerate(output_size, -rank):
            means = np.moveaxis(np.moveaxis(means, axis, -1) @ _averages(x.shape[axis], count).T, -1, axis)
        return means

    @portable(f"aten.adaptive_max_pool{rank}d.default")
    def adaptive_max_pool(x: Array, output_size: Sizes) -> tuple[Array, Array]:
        """Return maxima of even stretches, and their flat positions in each plane or volume."""
        sizes = x.shape[-rank:]
        if 0 in sizes:
            raise ShapeError(f"{list(x.shape)} is empty and has no largest element")
        places = [_stretches(n, o) for n, o in zip(sizes, output_size)]
        afford(math.prod([*x.shape[:-rank], *(p.size for p in places)]) * (x.itemsize + 8))
        values = _stretched(x, places)
        best = values.argmax(-1)[..., None]
        flat = np.broadcast_to(_stretched(np.arange(math.prod(sizes)).reshape(sizes), places), values.shape)
        return np.take_along_axis(values, best, -1)[..., 0], np.take_along_axis(flat, best, -1)[..., 0]


for _rank in (2, 3):
    _define(_rank)


@portable("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_with_indices_backward(
    grad_output: Array,
    x: Array,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Array,
) -> Array:
    planes = int(np.prod(x.shape[:-2]))
    gradient = np.zeros((planes, x.shape[-2] * x.shape[-1]), accumulator(x.dtype))
    np.add.at(gradient, (np.arange(planes)[:, None], indices.reshape(planes, -1)), grad_output.reshape(planes, -1))
    return gradient.reshape(x.shape)


def _stretches(size: int, count: int) -> Array:
    """Return the positions in `count` even stretches, (count, longest); shorter ones repeat their last position."""
    k = np.arange(count)
    start, end = k * size // count, -(-(k + 1) * size // count)
    return np.minimum(start[:, None] + np.arange(np.max(end - start, initial=0)), end[:, None] - 1)


def _stretched(x: Array, places: Sequence[Array]) -> Array:
    """Return the elements at the positions of each of the last dimensions: (…, *counts, elements of a stretch)."""
    rank, outer = len(places), x.shape[: x.ndim - len(places)]
    at: Subscript = (..., *np.ix_(*(p.ravel() for p in places)))
    elements = x[at].reshape(*outer, *(n for p in places for n in p.shape))
    return np.moveaxis(elements, range(1 - 2 * rank, 0, 2), range(-rank, 0)).reshape(
        *outer, *(len(p) for p in places), math.prod(p.shape[1] for p in places)
    )


def _averages(size: int, count: int) -> Array:
    """Return a matrix (count, size) whose rows average `count` even stretches."""
    start = np.arange(count)[:, None] * size // count
    end = -(-(np.arange(count)[:, None] + 1) * size // count)
    place = np.arange(size)
    return ((place >= start) & (place < end)) / (end - start)
