"""Operators that pick or place elements by index or mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ExecutionError, IndexOutOfRange
from .promotion import at_least_1d, axis, compute_type, to
from .registry import Array, Number, afford, portable

Position = tuple[Any, ...]  # NumPy subscripts: arrays and slices


def checked(index: Array, size: int, low: int = 0) -> Array:
    """Return the indices; raise IndexOutOfRange unless all lie in [low, size)."""
    if index.size and not low <= index.min() <= index.max() < size:
        at = np.argmax((index.reshape(-1) < low) | (index.reshape(-1) >= size))
        value, place = index.reshape(-1)[at], [int(k) for k in np.unravel_index(at, index.shape)]
        raise IndexOutOfRange(f"the index {value} at {place} is out of range: {low} to {size - 1}")
    return index


def _selected(x: Array, dim: int, index: Array) -> list[int]:
    along = axis(dim, x.ndim)
    return [index.size if k == along else n for k, n in enumerate(x.shape)]


@portable("aten.index_select.default", sizes=_selected)
def index_select(x: Array, dim: int, index: Array) -> Array:
    along = axis(dim, x.ndim)
    row = at_least_1d(x)
    selected = row.take(checked(at_least_1d(index), row.shape[along]), along)
    return selected if x.ndim else selected.reshape(())


@portable("aten.embedding.default", sizes=lambda weight, indices, *_: [*indices.shape, *weight.shape[1:]])
def embedding(
    weight: Array, indices: Array, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    return weight[checked(indices, weight.shape[0])]


@portable("aten.gather.default", sizes=lambda x, dim, index, *_: index.shape)
def gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    return at_least_1d(x)[_positions(x, dim, index)].reshape(index.shape)


def _positions(x: Array, dim: int, index: Array) -> Position:
    """Return the subscript of the elements of `x` at `index` along `dim`; other coordinates are those of `index`."""
    along, row = axis(dim, x.ndim), at_least_1d(index)
    checked(row, x.shape[along] if x.ndim else 1)
    grid = np.ogrid[tuple(slice(n) for n in row.shape)]
    return tuple(row if k == along else g for k, g in enumerate(grid))


def _source(source: Array, index: Array) -> Array:
    """Return the elements of `source` at the coordinates of `index`."""
    return at_least_1d(source)[tuple(slice(n) for n in at_least_1d(index).shape)]


@portable("aten.scatter.src")
def scatter(x: Array, dim: int, index: Array, source: Array) -> Array:
    result = at_least_1d(x).copy()
    if index.size:
        result[_positions(x, dim, index)] = _source(source, index)
    return result.reshape(x.shape)


@portable("aten.scatter.value")
def scatter_value(x: Array, dim: int, index: Array, value: Number) -> Array:
    return scatter(x, dim, index, np.broadcast_to(to(value, x.dtype), index.shape))


@portable("aten.scatter_add.default")
def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    return scatter_reduce(x, dim, index, source, "sum")


@portable("aten.scatter.reduce")
def scatter_by(x: Array, dim: int, index: Array, source: Array, reduce: str) -> Array:
    return scatter_reduce(x, dim, index, source, {"add": "sum", "multiply": "prod"}.get(reduce, reduce))


@portable("aten.scatter.value_reduce")
def scatter_value_by(x: Array, dim: int, index: Array, value: Number, reduce: str) -> Array:
    return scatter_by(x, dim, index, np.full(index.shape, value, x.dtype), reduce)


@portable("aten.scatter_reduce.two")
def scatter_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True) -> Array:
    if not index.size:
        return x
    where = _positions(x, dim, index)
    return _folded(at_least_1d(x), where, _source(source, index), reduce, include_self).reshape(x.shape)


@portable("aten.index_reduce.default")
def index_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True) -> Array:
    along, row = axis(dim, x.ndim), at_least_1d(x)
    where: Position = (*(slice(None),) * along, checked(at_least_1d(index), row.shape[along]))
    return _folded(row, where, source.reshape(row[where].shape), reduce, include_self).reshape(x.shape)


_FOLDS: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}


def _folded(x: Array, where: Position, source: Array, reduce: str, include_self: bool) -> Array:
    """Fold `source` into `x` at positions `where`; an element that gets values counts itself with `include_self`."""
    if reduce not in _FOLDS:
        raise ExecutionError(f"invalid reduction '{reduce}': expected one of {', '.join(_FOLDS)}")
    counts = np.zeros(x.shape, np.int64)
    np.add.at(counts, where, 1)
    result = x.astype(compute_type(x.dtype))
    if not include_self:
        result[counts > 0] = _neutral(result.dtype, reduce)
    _FOLDS[reduce].at(result, where, source)
    if reduce == "mean":
        counts = np.maximum(counts + include_self, 1)
        result = result / counts if x.dtype.kind == "f" else result // counts
    return result


def _neutral(dtype: np.dtype, reduce: str) -> Number:
    if reduce not in ("amax", "amin"):
        return int(reduce == "prod")
    if dtype.kind == "b":
        return reduce == "amin"
    bounds = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bounds[reduce == "amin"]


def _is_mask(index: Array | None) -> bool:
    return index is not None and index.dtype in (np.bool_, np.uint8)


def _subscript(x: Array, indices: Sequence[Array | None]) -> Position:
    """Return NumPy's subscript for a list of optional indices: None takes all, a mask takes its nonzero positions."""
    if len(indices) > x.ndim:
        raise ExecutionError(f"{len(indices)} indices for a tensor of sizes {list(x.shape)}")
    subscript: list[Array | slice] = []
    dim = 0
    for i in indices:
        if i is None:
            subscript.append(slice(None))
        elif _is_mask(i):
            subscript.append(i.astype(bool, copy=False))
        else:
            subscript.append(checked(i, x.shape[dim], -x.shape[dim]).astype(np.intp, copy=False))
        dim += max(i.ndim, 1) if i is not None and _is_mask(i) else 1
    return tuple(subscript)


def _picked(x: Array, indices: Sequence[Array | None]) -> list[int]:
    """Return the shape of `x[indices]`: the indices' shape replaces their dimensions if adjacent, else comes first."""
    where = [k for k, i in enumerate(indices) if i is not None]
    others, block, dim = [], [], 0
    for i in indices:
        if i is None:
            others.append(x.shape[dim])
        else:
            block.append((np.count_nonzero(i),) if _is_mask(i) else i.shape)
        dim += max(i.ndim, 1) if i is not None and _is_mask(i) else 1
    others += x.shape[dim:]
    first = where[0] if where and where[-1] - where[0] + 1 == len(where) else 0
    return [*others[:first], *np.broadcast_shapes(*block), *others[first:]]


@portable("aten.index.Tensor", sizes=_picked)
def index(x: Array, indices: Sequence[Array | None]) -> Array:
    return x[_subscript(x, indices)]


@portable("aten.index_put.default")
def index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    result, where = x.copy(), _subscript(x, indices)
    if accumulate:
        np.add.at(result, where, values.astype(x.dtype, copy=False))
    else:
        result[where] = values
    return result


@portable("aten.masked_select.default")
def masked_select(x: Array, mask: Array) -> Array:
    x, mask = np.broadcast_arrays(x, mask)
    return x[mask.astype(bool)]


@portable("aten.masked_scatter.default")
def masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    x, mask = np.broadcast_arrays(x, mask.astype(bool))
    count = int(mask.sum())
    if count > source.size:
        raise ExecutionError(f"the mask selects {count} elements, the source has {source.size}")
    result = x.copy()
    result[mask] = source.reshape(-1)[:count]
    return result


@portable("aten.nonzero.default", places=0)
def nonzero(x: Array) -> Array:
    afford(8 * x.ndim * int(np.count_nonzero(x)))
    return np.argwhere(x)


@portable("aten.repeat_interleave.Tensor", sizes=lambda repeats, output_size=None: [sum(repeats.tolist())])
def repeat_interleave(repeats: Array, output_size: int | None = None) -> Array:
    return np.repeat(np.arange(len(repeats)), repeats)


def _repeated(x: Array, repeats: int, dim: int | None = None, output_size: int | None = None) -> list[int]:
    if dim is None:
        return [x.size * repeats]
    along = axis(dim, x.ndim)
    return [n * repeats if k == along else n for k, n in enumerate(x.shape)]


@portable("aten.repeat_interleave.self_int", sizes=_repeated)
def repeat_each(x: Array, repeats: int, dim: int | None = None, output_size: int | None = None) -> Array:
    """Repeat each slice along a dimension or, without a dimension, each element of the flattened tensor."""
    if repeats < 0:
        raise ExecutionError(f"repeats = {repeats} is negative")
    return np.repeat(x, repeats, None if dim is None else axis(dim, x.ndim))
