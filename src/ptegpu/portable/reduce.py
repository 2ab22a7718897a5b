"""Reductions and running sums. Sums and products accumulate in float64 or int64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ExecutionError
from .promotion import FLOAT64, accumulator, at_least_1d, axes, axis, float_type, result_accumulator
from .registry import Array, Number, OutSpec, portable

Dims = Sequence[int] | None


@portable("aten.sum.dim_IntList")
def sum(x: Array, dim: Dims, keepdim: bool = False, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
    return x.sum(axis=axes(dim, x.ndim), keepdims=keepdim, dtype=result_accumulator(outs))


@portable("aten.sum.default")
def sum_all(x: Array, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
    return x.sum(dtype=result_accumulator(outs))


@portable("aten.mean.dim")
def mean(x: Array, dim: Dims, keepdim: bool = False, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
    reduced = axes(dim, x.ndim)
    count = np.prod([x.shape[a] for a in reduced], dtype=np.int64)
    return x.sum(axis=reduced, keepdims=keepdim, dtype=result_accumulator(outs)) / count


@portable("aten.mean.default")
def mean_all(x: Array, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
    return mean(x, None, outs=outs)


@portable("aten.prod.default")
def prod_all(x: Array, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
    return x.prod(dtype=result_accumulator(outs))


@portable("aten.prod.dim_int")
def prod(x: Array, dim: Dims, keepdim: bool = False, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
    return x.prod(axis=axes(dim, x.ndim), keepdims=keepdim, dtype=result_accumulator(outs))


@portable("aten.cumsum.default")
def cumsum(x: Array, dim: int, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
    if x.ndim == 0:
        return x
    return x.cumsum(axis=axis(dim, x.ndim), dtype=result_accumulator(outs))


@portable("aten.logcumsumexp.default")
def logcumsumexp(x: Array, dim: int) -> Array:
    if x.ndim == 0:
        return x
    return np.logaddexp.accumulate(x.astype(FLOAT64), axis(dim, x.ndim))


def _running(x: Array, dim: int, fold: np.ufunc) -> tuple[Array, Array]:
    """The extreme so far, and where it was last; a NaN is more extreme than any number."""
    row, along = at_least_1d(x), axis(dim, x.ndim)
    values = fold.accumulate(row, along) if row.size else row
    numbers = np.arange(row.shape[along]).reshape((-1,) + (1,) * (row.ndim - along - 1))
    found = np.where(np.isnan(row) | (row == values), numbers, 0)
    return values.reshape(x.shape), np.maximum.accumulate(found, along).reshape(x.shape)


@portable("aten.cummax.default")
def cummax(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(x, dim, np.maximum)


@portable("aten.cummin.default")
def cummin(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(x, dim, np.minimum)


def variance(x: Array, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[Array, Array]:
    """Variance and mean; `correction` is what the count is diminished by, 1 unless given."""
    reduced = axes(dim, x.ndim)
    count = np.prod([x.shape[a] for a in reduced], dtype=np.int64)
    wide = x.astype(accumulator(x.dtype), copy=False)
    center = wide.sum(axis=reduced, keepdims=True) / count
    squares = np.square(wide - center).sum(axis=reduced, keepdims=True)
    degrees = np.maximum(count - (1 if correction is None else correction), 0)
    spread = squares / np.asarray(degrees, FLOAT64)
    if not keepdim:
        spread, center = spread.squeeze(reduced), center.squeeze(reduced)
    return spread, center


@portable("aten.var_mean.correction")
def var_mean(
    x: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    return variance(x, dim, correction, keepdim)


@portable("aten.var.correction")
def var(x: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False) -> Array:
    return variance(x, dim, correction, keepdim)[0]


@portable("aten.var.dim")
def var_unbiased(x: Array, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Array:
    return variance(x, dim, int(unbiased), keepdim)[0]


@portable("aten.std.correction")
def std(x: Array, dim: Dims = None, correction: Number | None = None, keepdim: bool = False) -> Array:
    return np.sqrt(variance(x, dim, correction, keepdim)[0])


def _not_empty(x: Array, reduced: Sequence[int]) -> None:
    if any(x.shape[a] == 0 for a in reduced):
        raise ExecutionError(f"a tensor of sizes {list(x.shape)} has no largest or smallest element")


@portable("aten.amax.default")
def amax(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    reduced = axes(dim, x.ndim)
    _not_empty(x, reduced)
    return x.max(axis=reduced, keepdims=keepdim)


@portable("aten.amin.default")
def amin(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    reduced = axes(dim, x.ndim)
    _not_empty(x, reduced)
    return x.min(axis=reduced, keepdims=keepdim)


@portable("aten.max.default")
def max_all(x: Array) -> Array:
    return amax(x)


@portable("aten.min.default")
def min_all(x: Array) -> Array:
    return amin(x)


def _arg(function: Callable[..., Any], x: Array, dim: int | None, keepdim: bool) -> Array:
    """Where the first of the extreme elements is; a NaN is more extreme than any number."""
    if dim is None:
        _not_empty(x, range(x.ndim))
        return np.asarray(function(x)).reshape((1,) * x.ndim if keepdim else ())
    x, rank = at_least_1d(x), x.ndim
    along = axis(dim, rank)
    _not_empty(x, [along])
    return np.asarray(function(x, axis=along, keepdims=keepdim and rank > 0))


@portable("aten.argmax.default")
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg(np.argmax, x, dim, keepdim)


@portable("aten.argmin.default")
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg(np.argmin, x, dim, keepdim)


@portable("aten.max.dim")
def max_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return amax(x, [dim], keepdim), argmax(x, dim, keepdim)


@portable("aten.min.dim")
def min_along(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return amin(x, [dim], keepdim), argmin(x, dim, keepdim)


@portable("aten.any.default")
def any_at_all(x: Array) -> Array:
    return np.asarray(x.astype(bool).any())


@portable("aten.any.dim")
def any_along(x: Array, dim: int, keepdim: bool = False) -> Array:
    return np.asarray(x.astype(bool).any(axis=axes([dim], x.ndim), keepdims=keepdim))


@portable("aten.any.dims")
def any_along_several(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    reduced = () if dim is not None and not dim else axes(dim, x.ndim)  # no dimensions: nothing is reduced
    return np.asarray(x.astype(bool).any(axis=reduced, keepdims=keepdim))


@portable("aten.all.default")
def all_at_all(x: Array) -> Array:
    return np.asarray(x.astype(bool).all())


@portable("aten.all.dim")
def all_along(x: Array, dim: int, keepdim: bool = False) -> Array:
    return np.asarray(x.astype(bool).all(axis=axes([dim], x.ndim), keepdims=keepdim))


@portable("aten.linalg_vector_norm.default")
def vector_norm(x: Array, ord: Number = 2, dim: Dims = None, keepdim: bool = False, dtype: int | None = None) -> Array:
    reduced = axes(dim, x.ndim)
    size = np.abs(x.astype(float_type(x.dtype), copy=False)).astype(FLOAT64)
    return p_norm(size, ord, reduced, keepdim)


def p_norm(size: Array, p: Number, reduced: tuple[int, ...], keepdim: bool = False) -> Array:
    """The p-norm of absolute values, for every p from 0 (counting) to infinity."""
    if p == 0:
        return (size != 0).sum(axis=reduced, keepdims=keepdim, dtype=FLOAT64)
    if p == np.inf:
        return size.max(axis=reduced, keepdims=keepdim, initial=0)
    if p == -np.inf:
        return size.min(axis=reduced, keepdims=keepdim)
    return np.power(np.power(size, p).sum(axis=reduced, keepdims=keepdim), 1 / p)
