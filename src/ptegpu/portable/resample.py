"""Upsampling and grid sampling of images (N, C, H, W). Interpolation along a dimension is a matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ShapeError
from .promotion import FLOAT64, float_type
from .registry import Array, portable


def _target(
    x: Array, output_size: Sequence[int] | None, factors: Sequence[float] | None
) -> tuple[list[int], list[float | None]]:
    """Return the height and width of the output, and the factors that determine them, if any."""
    if output_size is not None and len(output_size):
        return list(output_size), [None, None]
    if factors is None:
        raise ShapeError("an upsampling needs an output size or scale factors")
    return [math.floor(n * f) for n, f in zip(x.shape[2:], factors)], list(factors)


def _scale(size: int, count: int, factor: float | None, align_corners: bool) -> float:
    """Return the number of input elements per output element."""
    if align_corners:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / factor if factor else size / count


@portable("aten.upsample_nearest2d.vec", sizes=lambda x, *size: [*x.shape[:2], *_target(x, *size)[0]])
def upsample_nearest2d(x: Array, output_size: Sequence[int] | None, scale_factors: Sequence[float] | None) -> Array:
    counts, factors = _target(x, output_size, scale_factors)
    for along, count, factor in zip((2, 3), counts, factors):
        size = x.shape[along]
        source = np.arange(count, dtype=np.float32) * np.float32(_scale(size, count, factor, False))
        x = x.take(np.minimum(np.floor(source).astype(np.intp), size - 1), along)
    return x


@portable("aten.upsample_bilinear2d.vec", sizes=lambda x, n, _, f: [*x.shape[:2], *_target(x, n, f)[0]])
def upsample_bilinear2d(
    x: Array, output_size: Sequence[int] | None, align_corners: bool, scale_factors: Sequence[float] | None
) -> Array:
    """Interpolate rows, then columns; uint8 is rounded after each.

    Unlike PyTorch, which weighs uint8 in fixed point, the weights are exact: a pixel of uint8 may differ by one.
    """
    counts, factors = _target(x, output_size, scale_factors)
    rows, cols = (_bilinear(n, c, f, align_corners) for n, c, f in zip(x.shape[2:], counts, factors))
    if x.dtype.kind != "u":
        return rows @ x.astype(FLOAT64) @ cols.T
    across = np.floor(x @ cols.T + 0.5)
    return np.floor(rows @ across + 0.5)


def _bilinear(size: int, count: int, factor: float | None, align_corners: bool) -> Array:
    """Return a matrix (count, size) whose rows weigh two neighbours."""
    scale = _scale(size, count, factor, align_corners)
    place = np.arange(count)
    source = place * scale if align_corners else np.maximum((place + 0.5) * scale - 0.5, 0)
    low = np.minimum(np.floor(source).astype(np.intp), size - 1)
    weight = np.clip(source - low, 0, 1)
    matrix = np.zeros((count, size))
    np.add.at(matrix, (place, low), 1 - weight)
    np.add.at(matrix, (place, np.minimum(low + 1, size - 1)), weight)
    return matrix


@portable("aten._upsample_bilinear2d_aa.default", sizes=lambda x, size, *_: [*x.shape[:2], *size])
def upsample_bilinear2d_aa(
    x: Array,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Array:
    rows, cols = (_triangles(n, c, f, align_corners) for n, c, f in zip(x.shape[2:], output_size, (scales_h, scales_w)))
    return rows @ x.astype(FLOAT64) @ cols.T


def _triangles(size: int, count: int, factor: float | None, align_corners: bool) -> Array:
    """Return a matrix (count, size) whose rows are triangles of sum 1, as wide as the output is coarse."""
    scale = _scale(size, count, factor, align_corners)
    support = max(scale, 1.0)
    center = scale * (np.arange(count)[:, None] + 0.5)
    first = np.maximum(np.trunc(center - support + 0.5), 0)
    last = np.minimum(np.trunc(center + support + 0.5), size)
    place = np.arange(size)
    weight = np.maximum(1 - np.abs((place - center + 0.5) / support), 0) * ((place >= first) & (place < last))
    return weight / weight.sum(1, keepdims=True)


@portable("aten.grid_sampler_2d.default", sizes=lambda x, grid, *_: [*x.shape[:2], *grid.shape[1:3]])
def grid_sampler_2d(x: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
    """Sample pixels at grid (N, H', W', (x, y)).

    Interpolations are bilinear 0, nearest 1 and bicubic 2; paddings are zeros 0, border 1 and reflection 2.
    """
    width, height = x.shape[3], x.shape[2]
    points = grid.astype(float_type(grid.dtype)).astype(FLOAT64)
    column, row = (_unnormalised(points[..., k], n, align_corners) for k, n in enumerate((width, height)))

    def padded(place: Array, size: int) -> Array:
        return _padded(place, size, padding_mode, align_corners)

    if interpolation_mode == 2:
        top, left = np.floor(row), np.floor(column)
        total = np.zeros(())
        for down, wy in zip(range(-1, 3), _cubic(row - top)):
            for right, wx in zip(range(-1, 3), _cubic(column - left)):
                pixels = _pixels(x, padded(top + down, height), padded(left + right, width))
                total = total + pixels * (wy * wx)[:, None]
        return total
    row, column = padded(row, height), padded(column, width)
    if interpolation_mode == 1:
        return _pixels(x, np.rint(row), np.rint(column))
    top, left = np.floor(row), np.floor(column)
    down, right = (row - top)[:, None], (column - left)[:, None]
    return (
        _pixels(x, top, left) * ((1 - down) * (1 - right))
        + _pixels(x, top, left + 1) * ((1 - down) * right)
        + _pixels(x, top + 1, left) * (down * (1 - right))
        + _pixels(x, top + 1, left + 1) * (down * right)
    )


def _unnormalised(place: Array, size: int, align_corners: bool) -> Array:
    """Convert coordinates in [-1, 1] to pixels."""
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _padded(place: Array, size: int, padding_mode: int, align_corners: bool) -> Array:
    """Return coordinates with those outside the image moved inside, unless the padding is zeros."""
    if padding_mode == 0:
        return place
    if padding_mode == 2:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return np.zeros_like(place)
        flips, extra = np.divmod(np.abs(place - low), span)
        place = np.where(flips % 2 == 0, extra, span - extra) + low
    return np.clip(place, 0, size - 1)


def _pixels(x: Array, row: Array, column: Array) -> Array:
    """Return pixels (N, C, H', W') at integral coordinates (N, H', W'); zero outside."""
    n, _, height, width = x.shape
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    r, c = (np.where(inside, v, 0).astype(np.intp) for v in (row, column))
    pixels = x[np.arange(n)[:, None, None], :, r, c]  # (N, H', W', C)
    return np.moveaxis(pixels * inside[..., None], 3, 1)


def _cubic(t: Array) -> tuple[Array, Array, Array, Array]:
    """Return the weights of the four neighbours at distance 1 + t, t, 1 - t, 2 - t, for a = -0.75."""
    a = -0.75

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((d - 5) * d + 8) * d * a - 4 * a

    return far(1 + t), near(t), near(1 - t), far(2 - t)
