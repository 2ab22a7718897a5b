"""Reductions and running sums. Sums and products accumulate in float64 or int64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ExecutionError
from .promotion import FLOAT64, accumulator, at_least_1d, axes, axis, float_type, result_accumulator
from .registry import Array, Number, OutSpec, portable

Dims = Sequence[int] | None


def _mean(x: Array, axis: tuple[int, ...], **options: Any) -> Any:
    return x.sum(axis=axis, **options) / np.prod([x.shape[a] for a in axis], dtype=np.int64)


def _totals(name: str, overload: str, total: Callable[..., Any]) -> None:
    """Register a total over some or all dimensions."""

    @portable(f"aten.{name}.{overload}")
    def along(
        x: Array, dim: Dims, keepdim: bool = False, dtype: int | None = None, *, outs: Sequence[OutSpec]
    ) -> Array:
        return total(x, axis=axes(dim, x.ndim), keepdims=keepdim, dtype=result_accumulator(outs))

    @portable(f"aten.{name}.default")
    def overall(x: Array, dtype: int | None = None, *, outs: Sequence[OutSpec]) -> Array:
        return along(x, None, outs=outs)


_totals("sum", "dim_IntList", np.sum)
_totals("mean", "dim", _mean)
_totals("prod", "dim_int", np.prod)


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
    """Return the running extreme and its last position; a NaN is more extreme than any number."""
    row, along = at_least_1d(x), axis(dim, x.ndim)
    values = fold.accumulate(row, along) if row.size else row
    numbers = np.arange(row.shape[along]).reshape((-1,) + (1,) * (row.ndim - along - 1))
    places = np.where(np.isnan(row) | (row == values), numbers, 0)
    return values.reshape(x.shape), np.maximum.accumulate(places, along).reshape(x.shape)


@portable("aten.cummax.default")
def cummax(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(x, dim, np.maximum)


@portable("aten.cummin.default")
def cummin(x: Array, dim: int) -> tuple[Array, Array]:
    return _running(x, dim, np.minimum)


def variance(x: Array, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[Array, Array]:
    """Return variance and mean; `correction` is subtracted from the count, by default 1."""
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


def _extremes(name: str, largest: Callable[..., Any], position: Callable[..., Any]) -> None:
    """Register `amax`, `argmax` and `max`, or their opposites. A NaN is more extreme than any number."""

    @portable(f"aten.a{name}.default", f"aten.{name}.default")
    def value(x: Array, dim: Dims = (), keepdim: bool = False) -> Array:
        reduced = axes(dim, x.ndim)
        _not_empty(x, reduced)
        return np.asarray(largest(x, axis=reduced, keepdims=keepdim))

    @portable(f"aten.arg{name}.default")
    def index(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        if dim is None:
            _not_empty(x, range(x.ndim))
            return np.asarray(position(x)).reshape((1,) * x.ndim if keepdim else ())
        x, rank = at_least_1d(x), x.ndim
        along = axis(dim, rank)
        _not_empty(x, [along])
        return np.asarray(position(x, axis=along, keepdims=keepdim and rank > 0))

    @portable(f"aten.{name}.dim")
    def both(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        return value(x, [dim], keepdim), index(x, dim, keepdim)


_extremes("max", np.max, np.argmax)
_extremes("min", np.min, np.argmin)


def _logical(name: str, function: Callable[..., Any]) -> None:
    """Register `any` or `all`. Unlike elsewhere, an empty list of dimensions reduces none."""

    @portable(f"aten.{name}.default", f"aten.{name}.dims")
    def kernel(x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
        reduced = () if dim is not None and not dim else axes(dim, x.ndim)
        return np.asarray(function(x.astype(bool), axis=reduced, keepdims=keepdim))

    @portable(f"aten.{name}.dim")
    def along(x: Array, dim: int, keepdim: bool = False) -> Array:
        return kernel(x, [dim], keepdim)


_logical("any", np.any)
_logical("all", np.all)


@portable("aten.linalg_vector_norm.default")
def vector_norm(x: Array, ord: Number = 2, dim: Dims = None, keepdim: bool = False, dtype: int | None = None) -> Array:
    reduced = axes(dim, x.ndim)
    size = np.abs(x.astype(float_type(x.dtype), copy=False)).astype(FLOAT64)
    return p_norm(size, ord, reduced, keepdim)


def p_norm(size: Array, p: Number, reduced: tuple[int, ...], keepdim: bool = False) -> Array:
    """Return the p-norm of absolute values, for every p from 0 (counting) to infinity."""
    if p == 0:
        return (size != 0).sum(axis=reduced, keepdims=keepdim, dtype=FLOAT64)
    if p == np.inf:
        return size.max(axis=reduced, keepdims=keepdim, initial=0)
    if p == -np.inf:
        return size.min(axis=reduced, keepdims=keepdim)
    return np.power(np.power(size, p).sum(axis=reduced, keepdims=keepdim), 1 / p)
