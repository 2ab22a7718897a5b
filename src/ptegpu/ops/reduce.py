"""Reductions over any set of dimensions, and running totals along one.

Floats accumulate in f32, everything else in i32. NaN propagates; of equal extremes the first index counts. A row so
long that few workgroups would work on it is reduced in two steps, through partial results.
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
ENOUGH = 8  # times the workgroups that keep a GPU busy: splitting stops there
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
class Rows:
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
        """Whether neighbouring rows, not the elements of a row, are neighbours in memory."""
        return self.kept[1][-1:] == (1,) and self.reduced[1][-1:] != (1,)

    @property
    def places(self) -> int:
        """Rows as lanes share them: four abreast are one."""
        return self.count // 4 if self.quads == "abreast" else self.count

    @property
    def ranks(self) -> tuple[int, int]:
        return len(self.kept[0]), len(self.reduced[0])

    def stored(self, dtype: DType, target: Target) -> DType:
        """What a kernel writes for outputs of that dtype."""
        return dtype if self.quads == "abreast" else store_type(dtype, target)

    def partial(self, parts: int) -> tuple[Shape, int]:
        """The shape of partial results, and the dimension that is left to reduce."""
        return ((parts, self.count), 0) if self.quads == "abreast" else ((self.count, parts), 1)


def rows_of(shape: Shape, dims: Sequence[int]) -> Rows:
    """A tensor of that shape with the dimensions `dims` reduced, in as few strided dimensions as that takes."""
    strides = contiguous(shape)
    kept = [k for k in range(len(shape)) if k not in dims]
    kept_shape, reduced_shape = tuple(shape[k] for k in kept), tuple(shape[k] for k in dims)
    kept_sizes, [kept_strides] = collapse(kept_shape, [tuple(strides[k] for k in kept)])
    sizes, [reduced_strides] = collapse(reduced_shape, [tuple(strides[k] for k in dims)])
    count, length = math.prod(kept_shape), math.prod(reduced_shape)
    rows = Rows(count, length, (kept_sizes, kept_strides), (sizes, reduced_strides))
    if in_quads(sizes, reduced_strides, kept_strides):
        return Rows(count, length // 4, (kept_sizes, quarter(kept_strides)), quarters(sizes, reduced_strides), "along")
    if in_quads(kept_sizes, kept_strides, reduced_strides):
        return Rows(count, length, quarters(kept_sizes, kept_strides), (sizes, quarter(reduced_strides)), "abreast")
    return rows


def in_quads(sizes: Shape, strides: Shape, others: Shape) -> bool:
    """Whether the innermost of these dimensions can be read four by four, wherever the others lead."""
    return strides[-1:] == (1,) and sizes[-1] % 4 == 0 and all(s % 4 == 0 for s in (*strides[:-1], *others))


def quarters(sizes: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """Dimensions in quads of the innermost."""
    return (*sizes[:-1], sizes[-1] // 4), (*quarter(strides[:-1]), 1)


def quarter(strides: Shape) -> Shape:
    return tuple(s // 4 for s in strides)


def whole_lanes(rows: Rows, target: Target) -> Lanes:
    """The lanes that share a row which is not split."""
    return choose(ACROSS_ROWS if rows.columns else ALONG_ROWS, rows.places, rows.length, target)


def lanes_for(rows: Rows, target: Target) -> tuple[Lanes, int, int]:
    """The lanes that share a row, the parts it is split into, and the loads of a part."""
    lanes = whole_lanes(rows, target)
    groups, enough = lanes.groups(rows.places), ENOUGH * target.device_class.busy
    if rows.length <= LONG * lanes.count or groups * 2 > enough:
        return lanes, 1, rows.length
    parts = smallest(-(-rows.length // (PART * lanes.count)), enough // groups)
    span = -(-rows.length // parts)
    return lanes, -(-rows.length // span), span


def launch(
    kernel: KernelSpec,
    rows: Rows,
    lanes: Lanes,
    parts: int,
    span: int,
    read: Sequence[Tensor],
    write: Sequence[Tensor],
    more: dict[str, int | float],
) -> Dispatch:
    params: dict[str, int | float] = {"rows": rows.places, "length": rows.length, "split": parts, "span": span}
    for prefix, (sizes, strides) in (("k", rows.kept), ("r", rows.reduced)):
        params |= {f"{prefix}_d{k}": n for k, n in enumerate(sizes)}
        params |= {f"{prefix}_s{k}": s for k, s in enumerate(strides)}
    return Dispatch(kernel, read, write, lanes.groups(rows.places) * parts, params | more)


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
    read = [x] if centre is None else [x, centre]
    if parts == 1:
        stored = rows.stored(out.dtype, target)
        kernel = kernels.reduction(fold, x.dtype, stored, kind, *rows.ranks, rows.quads, True, True, lanes, target)
        yield launch(kernel, rows, lanes, 1, span, read, [out], last)
        return
    accumulator = kernels.ACCUMULATOR[kind]
    partial_shape, left = rows.partial(parts)
    partial = yield Scratch(partial_shape, accumulator)
    kernel = kernels.reduction(fold, x.dtype, accumulator, kind, *rows.ranks, rows.quads, True, False, lanes, target)
    yield launch(kernel, rows, lanes, parts, span, read, [partial], start)
    rows = rows_of(partial_shape, [left])
    lanes = whole_lanes(rows, target)
    stored = rows.stored(out.dtype, target)
    kernel = kernels.reduction(fold, accumulator, stored, kind, *rows.ranks, rows.quads, False, True, lanes, target)
    yield launch(kernel, rows, lanes, 1, rows.length, [partial], [out], last)


def find_extreme(
    largest: bool, x: Tensor, dims: Sequence[int], values: Tensor | None, indices: Tensor, target: Target
) -> Steps:
    """Steps that write the first index of each row's extreme, and the extreme itself where it is wanted."""
    rows = rows_of(x.shape, dims)
    lanes, parts, span = lanes_for(rows, target)
    kind = accumulator_of(x.dtype)
    sign = ">" if largest else "<"
    start: dict[str, int | float] = {"start": START["amax" if largest else "amin", kind]}
    write = [values, indices] if values else [indices]
    if parts == 1:
        stored = rows.stored(values.dtype, target) if values else None
        kernel = kernels.extremum(sign, x.dtype, stored, kind, *rows.ranks, rows.quads, True, lanes, target)
        yield launch(kernel, rows, lanes, 1, span, [x], write, start)
        return
    accumulator = kernels.ACCUMULATOR[kind]
    partial_shape, left = rows.partial(parts)
    partial = yield Scratch(partial_shape, accumulator)
    numbers = yield Scratch(partial_shape, DType.I32)
    kernel = kernels.extremum(sign, x.dtype, accumulator, kind, *rows.ranks, rows.quads, True, lanes, target)
    yield launch(kernel, rows, lanes, parts, span, [x], [partial, numbers], start)
    rows = rows_of(partial_shape, [left])
    lanes = whole_lanes(rows, target)
    stored = rows.stored(values.dtype, target) if values else None
    kernel = kernels.extremum(sign, accumulator, stored, kind, *rows.ranks, rows.quads, False, lanes, target)
    yield launch(kernel, rows, lanes, 1, rows.length, [partial, numbers], write, start)


def accumulator_of(dtype: DType) -> str:
    return "f32" if dtype.is_float else "i32"


def reduced_dims(x: Tensor, dims: Sequence[int] | None) -> list[int]:
    """The dimensions in order; none given means all."""
    chosen = [normalise_dim(d, x.rank) for d in dims] if dims else list(range(x.rank))
    if len(set(chosen)) < len(chosen):
        raise ShapeError(f"a dimension is given twice in {list(dims or ())}")
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
    """`sum`, `prod` and `mean`: over a list of dimensions, one, or all; the output's dtype is the accumulator's."""

    def over(x: Tensor, dims: list[int], keepdim: bool, target: Target) -> Steps:
        out = yield Out(reduced_shape(x, dims, keepdim))
        divisor = real(length_of(x, dims)) if fold == "mean" else None
        as_bools = {"sum": "any", "prod": "all"}.get(fold, fold) if out.dtype is DType.BOOL else fold
        yield from reduce(as_bools, x, dims, out, target, kind=accumulator_of(out.dtype), divisor=divisor)

    def some(
        x: Tensor, dim: list[int] | None, keepdim: bool = False, dtype: int | None = None, *, target: Target
    ) -> Steps:
        yield from over(x, reduced_dims(x, dim), keepdim, target)

    def every(x: Tensor, dtype: int | None = None, *, target: Target) -> Steps:
        yield from over(x, reduced_dims(x, None), False, target)

    define([f"{base}.{o}" for o in overloads], some, "steps", fits=fits, sums=fold != "mean", **traits)
    define([f"{base}.default"], every, "steps", fits=fits, sums=fold != "mean", **traits)


def extremes(base: str, alias: str, largest: bool) -> None:
    """`amax` and `max` or their opposites: values, indices or both."""
    fold = "amax" if largest else "amin"

    def value(x: Tensor, dims: list[int], keepdim: bool, target: Target) -> Steps:
        require_elements(x, dims)
        out = yield Out(reduced_shape(x, dims, keepdim), x.dtype)
        yield from reduce(fold, x, dims, out, target, kind=accumulator_of(x.dtype))

    def some(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False, *, target: Target) -> Steps:
        yield from value(x, reduced_dims(x, dim), keepdim, target)

    def every(x: Tensor, *, target: Target) -> Steps:
        yield from value(x, reduced_dims(x, None), False, target)

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

    define([f"aten.{fold}.default"], some, "steps", elements=("x",))
    define([f"{base}.default"], every, "steps", elements=("x",))
    define([f"{alias}.default"], index, "steps", wide=True, fits="x number", places=0)
    define([f"{base}.dim"], both, "steps", elements=("x",), places=1)


def logical(base: str, fold: str) -> None:
    """`any` and `all`: what is not zero is true. An empty list of dimensions reduces nothing, unlike elsewhere."""

    def over(x: Tensor, dims: list[int], keepdim: bool, target: Target) -> Steps:
        out = yield Out(reduced_shape(x, dims, keepdim))
        yield from reduce(fold, x, dims, out, target, kind="i32")

    def every(x: Tensor, *, target: Target) -> Steps:
        yield from over(x, reduced_dims(x, None), False, target)

    def one(x: Tensor, dim: int, keepdim: bool = False, *, target: Target) -> Steps:
        yield from over(x, reduced_dims(x, [dim]), keepdim, target)

    def some(x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, target: Target) -> Steps:
        yield from over(x, [] if dim == [] else reduced_dims(x, dim), keepdim, target)

    fits = "x any -> bool|int"
    define([f"{base}.default"], every, "steps", wide=True, fits=fits)
    define([f"{base}.dim"], one, "steps", wide=True, fits=fits)
    define([f"{base}.dims"], some, "steps", wide=True, fits=fits)


def spread(
    fold: str, x: Tensor, dims: list[int], correction: Number, out: Tensor, target: Target
) -> Generator[Step, Any, Tensor]:
    """Steps of `var` and `std`: the mean first, then squared deviations from it; returns the mean."""
    mean: Tensor = yield Scratch(out.shape, DType.F32)
    length = length_of(x, dims)
    yield from reduce("mean", x, dims, mean, target, kind="f32", divisor=real(length))
    divisor = real(largest(length - correction, 0))
    yield from reduce(fold, x, dims, out, target, kind="f32", divisor=divisor, centre=mean)
    return mean


def spreads(base: str, fold: str) -> None:
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

    def some(
        x: Tensor, dim: list[int] | None, unbiased: bool = True, keepdim: bool = False, *, target: Target
    ) -> Steps:
        yield from corrected(x, dim, int(unbiased), keepdim, target=target)

    def every(x: Tensor, unbiased: bool = True, *, target: Target) -> Steps:
        yield from corrected(x, None, int(unbiased), target=target)

    define([f"{base}.correction"], corrected, "steps", fits="x float")
    define([f"{base}.dim"], some, "steps", fits="x float")
    define([f"{base}.default"], every, "steps", fits="x float")


@op("aten.var_mean.correction", fits="x float")
def var_mean(
    x: Tensor,
    dim: list[int] | None = None,
    correction: Number | None = None,
    keepdim: bool = False,
    *,
    target: Target,
) -> Steps:
    dims = reduced_dims(x, dim)
    shape = reduced_shape(x, dims, keepdim)
    variance = yield Out(shape, x.dtype)
    mean = yield Out(shape, x.dtype)
    exact = yield from spread("var", x, dims, 1 if correction is None else correction, variance, target)
    yield cast(exact, mean, target)


def running(name: str, operator: str, **traits: Any) -> None:
    """`cumsum` and `cumprod`, in the output's type."""

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
