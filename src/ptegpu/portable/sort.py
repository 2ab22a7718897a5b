"""Sorting, top k, medians, and binary search in sorted sequences. A NaN is larger than any number."""

from __future__ import annotations

import numpy as np

from ..errors import ExecutionError
from .promotion import at_least_1d, axis, result_type, to
from .registry import Array, Number, portable


@portable("aten.sort.stable")
def sort_stable(x: Array, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Return sorted elements and their positions; equal elements keep their order."""
    row, along = at_least_1d(x), axis(dim, x.ndim)
    if descending:
        order = row.shape[along] - 1 - np.flip(np.argsort(np.flip(row, along), along, kind="stable"), along)
    else:
        order = np.argsort(row, along, kind="stable")
    return np.take_along_axis(row, order, along).reshape(x.shape), order.reshape(x.shape)


@portable("aten.sort.default")
def sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    return sort_stable(x, True, dim, descending)


@portable("aten.topk.default")
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    along = axis(dim, x.ndim)
    if not 0 <= k <= (x.shape[along] if x.ndim else 1):
        raise ExecutionError(f"k = {k} is out of range for dimension {dim} of sizes {list(x.shape)}")
    values, indices = sort_stable(x, True, dim, descending=largest)
    if x.ndim == 0:
        return values, indices
    first = (slice(None),) * along + (slice(k),)
    return values[first], indices[first]


@portable("aten.kthvalue.default")
def kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    along = axis(dim, x.ndim)
    if not 1 <= k <= (x.shape[along] if x.ndim else 1):
        raise ExecutionError(f"k = {k} is out of range for dimension {dim} of sizes {list(x.shape)}")
    order = np.argsort(at_least_1d(x), along, kind="stable")
    return _along(x, order.take([k - 1], along), along, keepdim)


def _along(x: Array, place: Array, along: int, keepdim: bool) -> tuple[Array, Array]:
    """Return the elements at one position per line, and the positions."""
    values = np.take_along_axis(at_least_1d(x), place, along)
    if x.ndim == 0 or not keepdim:
        return values.squeeze(along), place.squeeze(along)
    return values, place


@portable("aten.median.dim")
def median_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Return the lower of two elements in the middle, or the first NaN if there is one, and its position."""
    row, along = at_least_1d(x), axis(dim, x.ndim)
    if not row.shape[along]:
        raise ExecutionError(f"dimension {dim} of sizes {list(x.shape)} is empty and has no median")
    nan = np.isnan(row)
    middle = np.argsort(row, along, kind="stable").take([(row.shape[along] - 1) // 2], along)
    place = np.where(nan.any(along, keepdims=True), nan.argmax(along, keepdims=True), middle)
    return _along(x, place, along, keepdim)


@portable("aten.median.default")
def median(x: Array) -> Array:
    return median_along(x.reshape(-1), 0)[0] if x.size else np.asarray(np.nan)


@portable("aten.searchsorted.Tensor", "aten.searchsorted.Scalar", sizes=lambda _, values, *__: np.shape(values))
def searchsorted(
    sequence: Array,
    values: Array | Number,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    """Search for each row of values in its own sequence, or for all in one."""
    common = result_type(sequence, values)
    sequence, sought = to(sequence, common), to(values, common)
    if sorter is not None:
        sequence = np.take_along_axis(sequence, sorter, -1)
    where = side or ("right" if right else "left")
    if sequence.ndim == 1:
        return np.asarray(np.searchsorted(sequence, sought, where))  # type: ignore[call-overload]
    positions = np.zeros(sought.shape, np.int64)
    for row in np.ndindex(sequence.shape[:-1]):
        positions[row] = np.searchsorted(sequence[row], sought[row], where)  # type: ignore[call-overload]
    return positions


@portable("aten.bucketize.Tensor", "aten.bucketize.Scalar", sizes=lambda values, *_: np.shape(values))
def bucketize(values: Array | Number, boundaries: Array, out_int32: bool = False, right: bool = False) -> Array:
    return searchsorted(boundaries, values, out_int32, right)
