"""Sorting along a dimension, the largest k elements, and the k-th. Kernels sort indices of elements; values are then
gathered.

Equal elements keep their order; NaN is larger than any number.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels import sort as kernels
from ..kernels.sort import Order, Result
from ..plan.target import Target
from .index import aligned, along, read
from .pointwise import Strided, contiguous, pointwise
from .registry import Dispatch, Out, Scratch, Step, Steps, normalise_dim, op


def places(x: Tensor, dim: int, order: Order, out: Tensor, target: Target) -> Steps:
    """Write to `out` the positions along `dim` of the first elements in order, as many as it has room for."""
    length = x.shape[dim] if x.rank else 1
    keep = out.shape[dim] if out.rank else 1
    if out.numel:
        lines = x.numel // length, length, math.prod(x.shape[dim + 1 :])
        yield from _sorted(x, lines, order, keep, out, target)


def runs(
    index: Tensor, lines: tuple[int, int, int], size: int, target: Target
) -> Generator[Step, Any, tuple[Tensor, Tensor]]:
    """Sort indices into `size` elements, in `lines`: their count, their length, and the distance of their elements.

    Each line becomes a row of two tensors: the indices, counted from the front, with those out of range last; and their
    positions in the line.
    """
    keys_and_places: tuple[Tensor, Tensor] = yield from _sorted(
        index, lines, "index", lines[1], None, target, size=size
    )
    return keys_and_places


def _sorted(
    x: Tensor, lines: tuple[int, int, int], order: Order, keep: int, out: Tensor | None, target: Target, **size: int
) -> Generator[Step, Any, Any]:
    rows, length, inner = lines
    width = kernels.chunk(length, target)
    count = -(-length // width)  # runs per row, the last of which may be shorter
    run, last = min(keep, width), min(keep, length - (count - 1) * width)

    room = (count - 1) * run + last  # per row; merges never need more
    pairs: list[list[Tensor]] = []  # of keys and numbers, written in turn

    def results() -> Generator[Step, Any, tuple[Result, list[Tensor]]]:
        if count == 1 and out is not None:
            return "places", [out]
        if len(pairs) < 2:
            pairs.append([(yield Scratch((rows, room), DType.I32)), (yield Scratch((rows, room), DType.I32))])
        else:
            pairs.reverse()
        return "runs", pairs[-1]

    kind, write = yield from results()
    kernel = kernels.chunks(x.dtype, order, width, kind, target)
    params = {"rows": rows, "length": length, "inner": inner, "chunks": count, "keep": run, "room": room, **size}
    groups = -(-rows * count * width // kernels.slots(width, target))
    yield Dispatch(kernel, [x], write, groups, params)
    while count > 1:
        params = {"rows": rows, "given": room, "runs": count, "run": run, "last": last, "inner": inner}
        groups = -(-rows * room // target.workgroup(256))
        pair, read = last + (run if count % 2 == 0 else 0), write
        count, run, last = -(-count // 2), min(keep, 2 * run), min(keep, pair)
        room = (count - 1) * run + last
        kind, write = yield from results()
        yield Dispatch(kernels.merge(kind, target), read, write, groups, {**params, "keep": run, "room": room})
    return tuple(write)


def _values_and_places(x: Tensor, dim: int, keep: int, order: Order, target: Target) -> Steps:
    d = normalise_dim(dim, x.rank)
    shape = (*x.shape[:d], keep, *x.shape[d + 1 :]) if x.rank else ()
    values = yield Out(shape, x.dtype)
    indices = yield Out(shape, DType.I32)
    yield from places(x, d, order, indices, target)
    yield read(x, aligned(x, d, indices), values, target)


@op("aten.sort.stable", elements=("x",), places=1)
def sort_stable(x: Tensor, stable: bool | None, dim: int = -1, descending: bool = False, *, target: Target) -> Steps:
    """Return the elements in order and their positions. The order is always stable."""
    length = x.shape[normalise_dim(dim, x.rank)] if x.rank else 1
    yield from _values_and_places(x, dim, length, "down" if descending else "up", target)


@op("aten.sort.default", elements=("x",), places=1)
def sort(x: Tensor, dim: int = -1, descending: bool = False, *, target: Target) -> Steps:
    yield from sort_stable(x, True, dim, descending, target=target)


@op("aten.topk.default", elements=("x",), places=1, fits="x number")
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, target: Target) -> Steps:
    """Return the k largest or smallest elements, in order.

    Unlike PyTorch, which may take any of several equal elements, it takes the first ones, in their order.
    """
    length = x.shape[normalise_dim(dim, x.rank)] if x.rank else 1
    if not 0 <= k <= length:
        raise ShapeError(f"k = {k} is out of range for dimension {dim} of {list(x.shape)}")
    yield from _values_and_places(x, dim, k, "down" if largest else "up", target)


def _at(x: Tensor, dim: int, numbers: Tensor, k: int) -> Strided:
    """Return the sorted positions `numbers` at place `k` along `dim`."""
    own = contiguous(numbers.shape)
    return Strided(numbers, own, k * own[dim] if x.rank else 0)


def _kth(x: Tensor, dim: int, k: int, keepdim: bool, middle: bool, target: Target) -> Steps:
    """Return the element at place `k` of the sorted `dim`, and its position; for a `middle`, a NaN if there is one."""
    single = (*x.shape[:dim], 1, *x.shape[dim + 1 :]) if x.rank else ()
    shape = single if keepdim else (*x.shape[:dim], *x.shape[dim + 1 :])
    values = yield Out(shape, x.dtype)
    indices = yield Out(shape, DType.I32)
    numbers = yield Scratch((*x.shape[:dim], k + 1, *x.shape[dim + 1 :]) if x.rank else (), DType.I32)
    yield from places(x, dim, "low" if middle else "up", numbers, target)
    chosen = _at(x, dim, numbers, k)
    if middle and x.dtype.is_float:
        lowest = yield Scratch(single, DType.I32)
        yield pointwise("select", "a", [_at(x, dim, numbers, 0)], lowest, target)
        least = yield Scratch(single, x.dtype)
        yield read(x, along(x, dim, lowest, single, contiguous(single)), least, target)
        sources = chosen, lowest, least
        yield pointwise("median", "select(a, b, is_nan(c))", sources, indices, target, shape=single)
    else:
        yield pointwise("select", "a", [chosen], indices, target, shape=single)
    yield read(x, along(x, dim, indices, single, contiguous(single)), values, target)


@op("aten.kthvalue.default", elements=("x",), places=1, fits="x number")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False, *, target: Target) -> Steps:
    """Return the k-th smallest element, counted from 1, and its position.

    Unlike PyTorch, which may take any of several equal elements, it counts them in their order.
    """
    d = normalise_dim(dim, x.rank)
    length = x.shape[d] if x.rank else 1
    if not 1 <= k <= length:
        raise ShapeError(f"k = {k} is out of range for dimension {dim} of {list(x.shape)}")
    yield from _kth(x, d, k - 1, keepdim, False, target)


@op("aten.median.dim", elements=("x",), places=1, fits="x number")
def median(x: Tensor, dim: int, keepdim: bool = False, *, target: Target) -> Steps:
    """Return the element in the middle (the lower of two, or NaN if there is one) and its position.

    Unlike PyTorch, which may take any of several equal elements, it counts them in their order.
    """
    d = normalise_dim(dim, x.rank)
    length = x.shape[d] if x.rank else 1
    if not length:
        raise ShapeError(f"dimension {dim} of {list(x.shape)} is empty and has no median")
    yield from _kth(x, d, (length - 1) // 2, keepdim, True, target)
