"""Reductions over any set of dimensions, and running totals along one.

Floats accumulate in f32, everything else in i32. NaN propagates; of equal extremes the first index counts. If rows are
long and few, several workgroups share a row, and a second dispatch reduces their partial results.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels import reduce as kernels
from ..kernels.lanes import ACROSS_ROWS, ALONG_ROWS, Lanes, choose
from ..kernels.reduce import Quads
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from ..sizes import largest, real, smallest
from .pointwise import cast, collapse, contiguous
from .registry import Dispatch, Number, Out, Scratch, Step, Steps, define, normalise_dim, op
from .spans import summed

LONG = 32  # loads per lane above which a row may be split
PART = 8  # loads per lane that each part keeps
ENOUGH = 8  # rows are split until this many times as many workgroups run as keep a GPU busy
START = {
    ("sum", "f32"): 0.0,
    ("sum", "i32"): 0,
    ("mean", "f32"): 0.0,
    ("var", "f32"): 0.0,
    ("std", "f32"): 0.0,
    ("prod", "f32"): 1.0,
    ("prod", "i32"): 1,
    ("any", "i32"): 0,
    ("all", "i32"): 1,
    ("amax", "f32"): -math.inf,
    ("amax", "i32"): -(2**31),
    ("amin", "f32"): math.inf,
    ("amin", "i32"): 2**31 - 1,
}


@dataclass(frozen=True, slots=True)
class ReducedRows:
    """A tensor as rows to reduce: sizes and strides of the kept and of the reduced dimensions, in loads.

    A load is one element, four of a row ("along"), or one of each of four neighbouring rows ("abreast").
    """

    count: int
    length: int
    kept: tuple[Shape, Shape]  # (sizes, strides)
    reduced: tuple[Shape, Shape]
    quads: Quads = ""

    @property
    def columns(self) -> bool:
        """Return True if neighbouring rows, not the elements of a row, are neighbours in memory."""
        return self.kept[1][-1:] == (1,) and self.reduced[1][-1:] != (1,)

    @property
    def places(self) -> int:
        """Return the number of rows that lanes share; four abreast count as one."""
        return self.count // 4 if self.quads == "abreast" else self.count

    @property
    def ranks(self) -> tuple[int, int]:
        return len(self.kept[0]), len(self.reduced[0])

    def stored(self, dtype: DType, target: Target) -> DType:
        """Return the dtype that a kernel writes for outputs of this dtype."""
        return dtype if self.quads == "abreast" else store_type(dtype, target)

    def partial(self, parts: int) -> tuple[Shape, int]:
        """Return the shape of partial results, and the dimension that remains to be reduced."""
        return ((parts, self.count), 0) if self.quads == "abreast" else ((self.count, parts), 1)


def rows_of(shape: Shape, dims: Sequence[int]) -> ReducedRows:
    """Return a tensor of this shape, with `dims` to reduce, as rows of the fewest strided dimensions."""
    strides = contiguous(shape)
    others = [k for k in range(len(shape)) if k not in dims]
    outer_shape, row_shape = tuple(shape[k] for k in others), tuple(shape[k] for k in dims)
    outer_sizes, [outer_strides] = collapse(outer_shape, [tuple(strides[k] for k in others)])
    sizes, [row_strides] = collapse(row_shape, [tuple(strides[k] for k in dims)])
    count, length = math.prod(outer_shape), math.prod(row_shape)
    if _in_quads(sizes, row_strides, outer_strides):
        length, outer_strides = length // 4, _quarter(outer_strides)
        return ReducedRows(count, length, (outer_sizes, outer_strides), _quarters(sizes, row_strides), "along")
    if _in_quads(outer_sizes, outer_strides, row_strides):
        outer = _quarters(outer_sizes, outer_strides)
        return ReducedRows(count, length, outer, (sizes, _quarter(row_strides)), "abreast")
    return ReducedRows(count, length, (outer_sizes, outer_strides), (sizes, row_strides))


def _in_quads(sizes: Shape, strides: Shape, others: Shape) -> bool:
    """Return True if aligned quads along the innermost dimension can be read at all coordinates of the others."""
    return strides[-1:] == (1,) and sizes[-1] % 4 == 0 and all(s % 4 == 0 for s in (*strides[:-1], *others))


def _quarters(sizes: Shape, strides: Shape) -> tuple[Shape, Shape]:
    return (*sizes[:-1], sizes[-1] // 4), (*_quarter(strides[:-1]), 1)


def _quarter(strides: Shape) -> Shape:
    return tuple(s // 4 for s in strides)


def unsplit_lanes(rows: ReducedRows, target: Target) -> Lanes:
    """Return the lanes that share a row which is not split."""
    return choose(ACROSS_ROWS if rows.columns else ALONG_ROWS, rows.places, rows.length, target)


def lanes_for(rows: ReducedRows, target: Target) -> tuple[Lanes, int, int]:
    """Return the lanes that share a row, the number of parts it is split into, and the loads of a part."""
    lanes = unsplit_lanes(rows, target)
    groups, enough = lanes.groups(rows.places), ENOUGH * target.device_class.busy
    if rows.length <= LONG * lanes.count or groups * 2 > enough:
        return lanes, 1, rows.length
    parts = smallest(-(-rows.length // (PART * lanes.count)), enough // groups)
    span = -(-rows.length // parts)
    return lanes, -(-rows.length // span), span


def launch(
    kernel: KernelSpec,
    rows: ReducedRows,
    lanes: Lanes,
    parts: int,
    span: int,
    read: Sequence[Tensor],
    write: Sequence[Tensor],
    numbers: dict[str, int | float],
) -> Dispatch:
    params: dict[str, int | float] = {"rows": rows.places, "length": rows.length, "split": parts, "span": span}
    for prefix, (sizes, strides) in (("k", rows.kept), ("r", rows.reduced)):
        params |= {f"{prefix}_d{k}": n for k, n in enumerate(sizes)}
        params |= {f"{prefix}_s{k}": s for k, s in enumerate(strides)}
    return Dispatch(kernel, read, write, lanes.groups(rows.places) * parts, params | numbers)


def reduce(
    fold: str,
    x: Tensor,
    dims: Sequence[int],
    out: Tensor,
    target: Target,
    *,
    kind: str,
    divisor: float | None = None,
    centre: Tensor | None = None,
    shape: Shape | None = None,
) -> Steps:
    """Reduce `dims` of `x`, or of its elements in another `shape`, into `out`, accumulating in `kind`."""
    rows = rows_of(x.shape if shape is None else shape, dims)
    lanes, parts, span = lanes_for(rows, target)
    start: dict[str, int | float] = {"start": START[fold, kind]}
    last = start if divisor is None else {**start, "divisor": divisor}
    read, dtype = [x] if centre is None else [x, centre], x.dtype
    if parts > 1:
        accumulator = kernels.ACCUMULATOR[kind]
        partial_shape, remaining = rows.partial(parts)
        partial = yield Scratch(partial_shape, accumulator)
        kernel = kernels.reduction(fold, dtype, accumulator, kind, rows.ranks, rows.quads, True, False, lanes, target)
        yield launch(kernel, rows, lanes, parts, span, read, [partial], start)
        read, dtype, rows = [partial], accumulator, rows_of(partial_shape, [remaining])
        lanes, span = unsplit_lanes(rows, target), rows.length
    stored = rows.stored(out.dtype, target)
    kernel = kernels.reduction(fold, dtype, stored, kind, rows.ranks, rows.quads, parts == 1, True, lanes, target)
    yield launch(kernel, rows, lanes, 1, span, read, [out], last)


def find_extreme(
    largest: bool, x: Tensor, dims: Sequence[int], values: Tensor | None, indices: Tensor, target: Target
) -> Steps:
    """Write the first index of each row's extreme to `indices`, and the extreme itself to `values` if present."""
    rows = rows_of(x.shape, dims)
    lanes, parts, span = lanes_for(rows, target)
    kind = accumulator_of(x.dtype)
    sign = ">" if largest else "<"
    start: dict[str, int | float] = {"start": START["amax" if largest else "amin", kind]}
    read, dtype = [x], x.dtype
    if parts > 1:
        accumulator = kernels.ACCUMULATOR[kind]
        partial_shape, remaining = rows.partial(parts)
        partial = [(yield Scratch(partial_shape, accumulator)), (yield Scratch(partial_shape, DType.I32))]
        kernel = kernels.extremum(sign, dtype, accumulator, kind, rows.ranks, rows.quads, True, lanes, target)
        yield launch(kernel, rows, lanes, parts, span, read, partial, start)
        read, dtype, rows = partial, accumulator, rows_of(partial_shape, [remaining])
        lanes, span = unsplit_lanes(rows, target), rows.length
    stored = rows.stored(values.dtype, target) if values else None
    kernel = kernels.extremum(sign, dtype, stored, kind, rows.ranks, rows.quads, parts == 1, lanes, target)
    yield launch(kernel, rows, lanes, 1, span, read, [values, indices] if values else [indices], start)


def accumulator_of(dtype: DType) -> str:
    return "f32" if dtype.is_float else "i32"


def reduced_dims(x: Tensor, dims: Sequence[int] | None) -> list[int]:
    """Return the dimensions to reduce, in order; without `dims`, all."""
    chosen = [normalise_dim(d, x.rank) for d in dims] if dims else list(range(x.rank))
    if len(set(chosen)) < len(chosen):
        raise ShapeError(f"a dimension occurs twice in {list(dims or ())}")
    return sorted(chosen) if x.rank else []


def reduced_shape(x: Tensor, dims: Sequence[int], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if k in dims else n for k, n in enumerate(x.shape))
    return tuple(n for k, n in enumerate(x.shape) if k not in dims)


def length_of(x: Tensor, dims: Sequence[int]) -> int:
    return math.prod(x.shape[k] for k in dims)


def require_elements(x: Tensor, dims: Sequence[int]) -> None:
    for k in dims:
        if x.shape[k] == 0:
            raise ShapeError(f"dimension {k} of {list(x.shape)} is empty: it has no largest or smallest element")


def totals(base: str, fold: str, *overloads: str, fits: str = "x any", **traits: Any) -> None:
    """Register `sum`, `prod` or `mean` over some or all dimensions, accumulated in the output's type."""

    def over(x: Tensor, dims: list[int], keepdim: bool, target: Target) -> Steps:
        out = yield Out(reduced_shape(x, dims, keepdim))
        divisor = real(length_of(x, dims)) if fold == "mean" else None
        as_bools = {"sum": "any", "prod": "all"}.get(fold, fold) if out.dtype is DType.BOOL else fold
        yield from reduce(as_bools, x, dims, out, target, kind=accumulator_of(out.dtype), divisor=divisor)

    def along(
        x: Tensor, dim: list[int] | None, keepdim: bool = False, dtype: int | None = None, *, target: Target
    ) -> Steps:
        yield from over(x, reduced_dims(x, dim), keepdim, target)

    def overall(x: Tensor, dtype: int | None = None, *, target: Target) -> Steps:
        yield from over(x, reduced_dims(x, None), False, target)

    define([f"{base}.{o}" for o in overloads], along, "steps", fits=fits, sums=fold != "mean", **traits)
    define([f"{base}.default"], overall, "steps", fits=fits, sums=fold != "mean", **traits)


def extremes(base: str, alias: str, largest: bool) -> None:
    """Register `amax` and `max` or their opposites: values, indices or both."""
    fold = "amax" if largest else "amin"

    def value(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False, *, target: Target) -> Steps:
        dims = reduced_dims(x, dim)
        require_elements(x, dims)
        out = yield Out(reduced_shape(x, dims, keepdim), x.dtype)
        yield from reduce(fold, x, dims, out, target, kind=accumulator_of(x.dtype))

    def index(x: Tensor, dim: int | None = None, keepdim: bool = False, *, target: Target) -> Steps:
        dims = reduced_dims(x, None if dim is None else [dim])
        require_elements(x, dims)
        out = yield Out(reduced_shape(x, dims, keepdim), DType.I32)
        yield from find_extreme(largest, x, dims, None, out, target)

    def both(x: Tensor, dim: int, keepdim: bool = False, *, target: Target) -> Steps:
        dims = reduced_dims(x, [dim])
        require_elements(x, dims)
        shape = reduced_shape(x, dims, keepdim)
        values = yield Out(shape, x.dtype)
        indices = yield Out(shape, DType.I32)
        yield from find_extreme(largest, x, dims, values, indices, target)

    define([f"aten.{fold}.default", f"{base}.default"], value, "steps", elements=("x",))
    define([f"{alias}.default"], index, "steps", wide=True, fits="x number", places=0)
    define([f"{base}.dim"], both, "steps", elements=("x",), places=1)


def logical(base: str, fold: str) -> None:
    """Register `any` or `all`: anything nonzero is true. Unlike elsewhere, an empty list of dimensions reduces none."""

    def rule(x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, target: Target) -> Steps:
        dims = [] if dim == [] else reduced_dims(x, dim)
        out = yield Out(reduced_shape(x, dims, keepdim))
        yield from reduce(fold, x, dims, out, target, kind="i32")

    def along(x: Tensor, dim: int, keepdim: bool = False, *, target: Target) -> Steps:
        yield from rule(x, [dim], keepdim, target=target)

    define([f"{base}.default", f"{base}.dims"], rule, "steps", wide=True, fits="x any -> bool|int")
    define([f"{base}.dim"], along, "steps", wide=True, fits="x any -> bool|int")


def spread(
    fold: str, x: Tensor, dims: list[int], correction: Number, out: Tensor, target: Target
) -> Generator[Step, Any, Tensor]:
    """Compute `var` or `std`: first the mean, then the squared deviations from it; return the mean."""
    mean: Tensor = yield Scratch(out.shape, DType.F32)
    length = length_of(x, dims)
    yield from reduce("mean", x, dims, mean, target, kind="f32", divisor=real(length))
    divisor = real(largest(length - correction, 0))
    yield from reduce(fold, x, dims, out, target, kind="f32", divisor=divisor, centre=mean)
    return mean


def spreads(base: str, fold: str) -> None:
    """Register `var` or `std`."""

    def corrected(
        x: Tensor,
        dim: list[int] | None = None,
        correction: Number | None = None,
        keepdim: bool = False,
        *,
        target: Target,
    ) -> Steps:
        dims = reduced_dims(x, dim)
        out = yield Out(reduced_shape(x, dims, keepdim), x.dtype)
        yield from spread(fold, x, dims, 1 if correction is None else correction, out, target)

    def along(
        x: Tensor, dim: list[int] | None, unbiased: bool = True, keepdim: bool = False, *, target: Target
    ) -> Steps:
        yield from corrected(x, dim, int(unbiased), keepdim, target=target)

    def overall(x: Tensor, unbiased: bool = True, *, target: Target) -> Steps:
        yield from corrected(x, None, int(unbiased), target=target)

    define([f"{base}.correction"], corrected, "steps", fits="x float")
    define([f"{base}.dim"], along, "steps", fits="x float")
    define([f"{base}.default"], overall, "steps", fits="x float")


@op("aten.var_mean.correction", fits="x float")
def var_mean(
    x: Tensor, dim: list[int] | None = None, correction: Number | None = None, keepdim: bool = False, *, target: Target
) -> Steps:
    dims = reduced_dims(x, dim)
    shape = reduced_shape(x, dims, keepdim)
    variance = yield Out(shape, x.dtype)
    mean = yield Out(shape, x.dtype)
    exact = yield from spread("var", x, dims, 1 if correction is None else correction, variance, target)
    yield cast(exact, mean, target)


def running(name: str, operator: str, **traits: Any) -> None:
    """Register `cumsum` or `cumprod`, computed in the output's type."""

    def rule(x: Tensor, dim: int, dtype: int | None = None, *, target: Target) -> Steps:
        k = normalise_dim(dim, x.rank)
        out = yield Out(x.shape)
        length = x.shape[k] if x.rank else 1
        inner = math.prod(x.shape[k + 1 :])
        lines = x.numel // length if length else 0
        quads = inner == 1 and length % 4 == 0
        loads = length // 4 if quads else length
        lanes = choose(ALONG_ROWS if inner == 1 else ACROSS_ROWS, lines, loads, target)
        stored = out.dtype if quads else store_type(out.dtype, target)
        kernel = kernels.scan(name, operator, x.dtype, stored, quads, lanes, target)
        yield Dispatch(kernel, [x], [out], lanes.groups(lines), {"rows": lines, "length": loads, "inner": inner})

    define([f"aten.{name}.default"], rule, "steps", fits="x any -> number", sums=True, **traits)


totals("aten.sum", "sum", "dim_IntList", span=summed)
totals("aten.mean", "mean", "dim", fits="x any -> float")
totals("aten.prod", "prod", "dim_int")
extremes("aten.max", "aten.argmax", largest=True)
extremes("aten.min", "aten.argmin", largest=False)
logical("aten.any", "any")
logical("aten.all", "all")
spreads("aten.var", "var")
spreads("aten.std", "std")
running("cumsum", "+", span=summed)
running("cumprod", "*")
