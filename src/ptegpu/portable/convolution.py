"""Convolution over any number of spatial dimensions, its transpose and its gradient, as matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError
from .promotion import compute_type, to
from .registry import Array, OutSpec, afford, portable

Sizes = Sequence[int]
Subscript = tuple[Any, ...]


def per_dimension(values: Sizes, rank: int) -> list[int]:
    """Return one value per spatial dimension; a single value holds for all."""
    return list(values) * (rank if len(values) == 1 else 1)


def windows(x: Array, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Array:
    """Return every window over the last dimensions of `x`, as a view: (…, *positions, *kernel)."""
    rank = len(kernel)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    dense = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(x.ndim - rank, x.ndim)))
    steps: Subscript = (..., *(slice(None, None, s) for s in (*stride, *dilation)))
    return dense[steps]


def padded(x: Array, padding: Sizes) -> Array:
    afford(math.prod([*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], padding))]) * x.itemsize)
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])


def columns(x: Array, kernel: Sizes, stride: Sizes, dilation: Sizes, groups: int) -> tuple[Array, tuple[int, ...]]:
    """Return windows over a padded (N, C, *sizes) as rows, (N, groups, positions, C / groups × kernel), and the sizes
    of the positions.
    """
    rank = len(kernel)
    taps = windows(x, kernel, stride, dilation)
    afford(taps.size * x.itemsize)
    (n, channels), positions = x.shape[:2], taps.shape[2 : 2 + rank]
    taps = np.moveaxis(taps.reshape(n, groups, channels // groups, *taps.shape[2:]), 2, 2 + rank)
    return taps.reshape(n, groups, math.prod(positions), channels // groups * math.prod(kernel)), positions


def fold(rows: Array, sizes: Sizes, positions: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Array:
    """Apply the adjoint of `columns`: add every window at its position, into (N, C, *sizes)."""
    n, groups, _, width = rows.shape
    channels = width // math.prod(kernel)  # of a group
    taps = np.moveaxis(rows.reshape(n, groups, *positions, channels, *kernel), 2 + len(positions), 2)
    taps = taps.reshape(n, groups * channels, *positions, *kernel)
    total = np.zeros((n, groups * channels, *sizes), rows.dtype)
    for tap in np.ndindex(*kernel):
        starts = [t * d for t, d in zip(tap, dilation)]
        at: Subscript = (..., *(slice(a, a + s * (c - 1) + 1, s) for a, s, c in zip(starts, stride, positions)))
        total[at] += taps[(..., *tap)]
    return total


def forward(x: Array, weight: Array, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Array:
    """Convolve x (N, C, *sizes) with weight (O, C / groups, *kernel)."""
    n, outputs, kernel = x.shape[0], weight.shape[0], weight.shape[2:]
    if x.shape[1] != weight.shape[1] * groups:
        raise ShapeError(f"{x.shape[1]} channels do not fit weights {list(weight.shape)} in {groups} groups")
    x = padded(x, padding)
    positions = windows(x[:0], kernel, stride, dilation).shape[2 : 2 + len(kernel)]
    taps = weight.reshape(groups, outputs // groups, -1)
    afford(n * outputs * math.prod(positions) * x.itemsize)
    result = np.empty((n, outputs, *positions), x.dtype)
    for k in range(n):  # one at a time: columns take a kernel's size times the memory of the input
        rows, _ = columns(x[k : k + 1], kernel, stride, dilation, groups)
        result[k] = (taps @ rows[0].swapaxes(1, 2)).reshape(outputs, *positions)
    return result


def transpose(
    x: Array, weight: Array, stride: Sizes, padding: Sizes, dilation: Sizes, sizes: Sizes, groups: int
) -> Array:
    """Spread x (N, C, *positions) by weight (C, O / groups, *kernel) into (N, O, *sizes), whose padding is removed."""
    n, channels, *positions = x.shape
    if channels != weight.shape[0]:
        raise ShapeError(f"{channels} channels do not fit transposed weights {list(weight.shape)}")
    full = [s + 2 * p for s, p in zip(sizes, padding)]
    afford(n * groups * math.prod(weight.shape[1:]) * math.prod(positions) * x.itemsize)
    afford(n * groups * weight.shape[1] * math.prod(full) * x.itemsize)
    pixels = x.reshape(n, groups, channels // groups, math.prod(positions)).swapaxes(2, 3)  # (N, g, positions, C / g)
    rows = pixels @ weight.reshape(groups, channels // groups, -1)
    inside: Subscript = (..., *(slice(p, n - p) for p, n in zip(padding, full)))
    return fold(rows, full, positions, weight.shape[2:], stride, dilation)[inside]


@portable("aten.convolution.default")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Array:
    rank, dtype = weight.ndim - 2, compute_type(x.dtype)
    stride, padding, dilation, output_padding = (
        per_dimension(v, rank) for v in (stride, padding, dilation, output_padding)
    )
    x, weight = to(x, dtype), to(weight, dtype)
    if transposed:
        sizes = [
            (n - 1) * s + d * (k - 1) + 1 + o - 2 * p
            for n, k, s, p, d, o in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding)
        ]
        result = transpose(x, weight, stride, padding, dilation, sizes, groups)
    else:
        result = forward(x, weight, stride, padding, dilation, groups)
    return result if bias is None else result + to(bias, dtype).reshape(-1, *[1] * rank)


@portable("aten.convolution_backward.default")
def convolution_backward(
    grad_output: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
    *,
    outs: Sequence[OutSpec],
) -> tuple[Array, ...]:
    """Return the gradients of input, weight and bias; the mask replaces some by zeros."""
    rank, dtype = weight.ndim - 2, compute_type(x.dtype)
    stride, padding, dilation = (per_dimension(v, rank) for v in (stride, padding, dilation))
    grad, x, weight = (to(v, dtype) for v in (grad_output, x, weight))
    kernel = weight.shape[2:]

    def grad_input() -> Array:
        if transposed:
            return forward(grad, weight, stride, padding, dilation, groups)
        return transpose(grad, weight, stride, padding, dilation, x.shape[2:], groups)

    def grad_weight() -> Array:
        windowed, still = (grad, x) if transposed else (x, grad)
        rows, _ = columns(padded(windowed, padding), kernel, stride, dilation, groups)
        pixels = still.reshape(len(still), groups, still.shape[1] // groups, -1)
        rows = rows[:, :, : pixels.shape[3]]
        return (pixels @ rows).sum(0).reshape(weight.shape)

    def grad_bias() -> Array:
        return grad.sum(axis=(0, *range(2, grad.ndim)), dtype=np.float64)

    gradients = (grad_input, grad_weight, grad_bias)
    return tuple(
        gradient() if needed else np.zeros(out.sizes or ())
        for gradient, needed, out in zip(gradients, output_mask, outs)
    )
