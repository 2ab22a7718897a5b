"""Values reduced into a tensor at given indices: the sum, product, mean or extreme of all values for one position.

Indices are sorted first, and values are folded in their order, in f32 or i32, so every run gives the same result. The
GPU compares int64; the host adds and multiplies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels import scatter as kernels
from ..kernels.scatter import Fold
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .index import (
    UNWRITTEN,
    IndexedElements,
    advanced,
    aligned,
    along_dim,
    can_overwrite,
    has_few_int_indices,
    in_front,
    overwritten,
    per_dim,
)
from .pointwise import cast, collapse, contiguous, pointwise, walk_params
from .registry import Dispatch, Out, Scratch, Steps, normalise_dim, op
from .sort import runs

FOLDS: Mapping[str, Fold] = {
    **{name: name for name in ("sum", "prod", "mean", "amax", "amin")},  # type: ignore[dict-item]
    "add": "sum",
    "multiply": "prod",
}


def _fold(reduce: str) -> Fold:
    if reduce not in FOLDS:
        raise InvalidProgram(f"invalid reduction '{reduce}': expected one of {', '.join(FOLDS)}")
    return FOLDS[reduce]


def is_exact(a: Mapping[str, Any]) -> bool:
    """Return False for arithmetic on int64, which the GPU can only compare."""
    return a["x"].dtype is not DType.I64 or a.get("reduce", "sum") in ("amax", "amin")


def can_put(a: Mapping[str, Any]) -> bool:
    """Return True if the GPU can do a call of `index_put`."""
    if not a["accumulate"]:
        return can_overwrite(a)
    return has_few_int_indices(a) and a["x"].dtype not in (DType.I64, DType.BOOL)


def _folded(
    by: Fold,
    x: Tensor,
    order: tuple[Tensor, Tensor],
    values: Tensor,
    strides: Mapping[str, tuple[int, ...]],
    step: int,
    out: Tensor,
    target: Target,
    *,
    own: bool = True,
    limits: Shape | None = None,
) -> Dispatch:
    """Return a dispatch of `kernels.fold` over the elements of `x`, with strides of rows, keys and values over it."""
    sizes = x.shape
    if limits is None:
        sizes, collapsed = collapse(x.shape, list(strides.values()))
        strides = dict(zip(strides, collapsed, strict=True))
    stored, bounded = store_type(out.dtype, target), limits is not None
    kernel = kernels.fold(by, x.dtype, values.dtype, stored, len(sizes), bounded, target)
    params = {"n": out.numel, "own": int(own), "length": order[0].shape[1], "step": step, **walk_params(sizes, strides)}
    params |= {f"limit{k}": n for k, n in enumerate(limits or ())}
    groups = -(-out.numel // kernel.kernel.workgroup)
    return Dispatch(kernel, [x, *order, values], [out], groups, params)


def scattered(by: Fold, x: Tensor, dim: int, index: Tensor, source: Tensor, own: bool, target: Target) -> Steps:
    """Compute `scatter_*`: an index of the rank of `x` holds the position along `dim` of each element of `source`."""
    aligned(x, dim, index, source)
    out = yield Out(x.shape, x.dtype)
    if not index.numel:
        yield cast(x, out, target)
        return
    d = normalise_dim(dim, x.rank)
    sizes, index_sizes = x.shape or (1,), index.shape or (1,)
    others = (*index_sizes[:d], *index_sizes[d + 1 :])
    lines = math.prod(others), index_sizes[d], math.prod(index_sizes[d + 1 :])
    order = yield from runs(index, lines, sizes[d], target)
    line_strides = contiguous(others)
    source_strides = contiguous(source.shape or (1,))
    strides = {
        "row": (*line_strides[:d], 0, *line_strides[d:]),
        "key": tuple(int(k == d) for k in range(len(sizes))),
        "v": (*source_strides[:d], 0, *source_strides[d + 1 :]),
    }
    limits: Shape | None = (*index_sizes[:d], sizes[d], *index_sizes[d + 1 :])
    if x.rank == 0:
        strides = dict.fromkeys(strides, ())
    if x.rank == 0 or limits == sizes:
        limits = None
    yield _folded(by, x, order, source, strides, source_strides[d], out, target, own=own, limits=limits)


def accumulated(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, target: Target) -> Steps:
    """Compute `x[i, j, …] += values`, which broadcast."""
    elements = advanced(x, indices, values)
    out = yield Out(x.shape, x.dtype)
    if 0 in elements.shape:
        yield cast(x, out, target)
        return
    dims = [d for d, i in enumerate(indices) if i is not None]
    rest = [d for d in range(x.rank) if d not in dims]
    at, end = in_front(dims), in_front(dims) + len(elements.shape) - len(rest)
    sizes = tuple(x.shape[d] for d in dims)
    count = math.prod(elements.shape[at:end])
    if len(dims) == 1:
        index = elements.indices[0].tensor
    else:
        index = yield Scratch((count,), DType.I32)
        yield _linear(elements, at, end, sizes, index, target)
    order = yield from runs(index, (1, count, 1), math.prod(sizes), target)
    if values.numel < math.prod(elements.shape):
        spread = yield Scratch(elements.shape, values.dtype)
        yield pointwise("expand", "a", [values], spread, target)
        values = spread
    own = contiguous(elements.shape)
    value_strides = dict(zip(rest, (*own[:at], *own[end:]), strict=True))
    keys = dict(zip(dims, contiguous(sizes), strict=True))
    strides = {
        "row": (0,) * x.rank,
        "key": tuple(keys.get(d, 0) for d in range(x.rank)),
        "v": tuple(value_strides.get(d, 0) for d in range(x.rank)),
    }
    yield _folded("sum", x, order, values, strides, math.prod(elements.shape[end:]), out, target)


def _linear(elements: IndexedElements, at: int, end: int, sizes: Shape, out: Tensor, target: Target) -> Dispatch:
    """Return a dispatch that combines several indices into one, into dimensions of these sizes."""
    walk, strides = collapse(elements.shape[at:end], [i.strides[at:end] for i in elements.indices])
    params = {"n": out.numel, **walk_params(walk, {f"i{j}": s for j, s in enumerate(strides)})}
    for j, (size, stride) in enumerate(zip(sizes, contiguous(sizes), strict=True)):
        params |= {f"i{j}_size": size, f"i{j}_stride": stride}
    kernel = kernels.linear(len(sizes), len(walk), target)
    groups = -(-out.numel // kernel.kernel.workgroup)
    return Dispatch(kernel, [i.tensor for i in elements.indices], [out], groups, params)


TRAITS: dict[str, Any] = {"wide": True, "fits": "x number, index int, source x", "indexes": along_dim}
TRAITS |= {"serves": is_exact, "differs": UNWRITTEN}


@op("aten.scatter_add.default", **TRAITS)
def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, target: Target) -> Steps:
    yield from scattered("sum", x, dim, index, source, True, target)


@op("aten.scatter.reduce", **TRAITS)
def scatter_by(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, target: Target) -> Steps:
    yield from scattered(_fold(reduce), x, dim, index, source, True, target)


@op("aten.scatter_reduce.two", **TRAITS)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True, *, target: Target
) -> Steps:
    yield from scattered(_fold(reduce), x, dim, index, source, include_self, target)


@op("aten.index_reduce.default", **TRAITS)
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True, *, target: Target
) -> Steps:
    """Fold slices of `source` into `x` at positions of `dim` given by a vector."""
    d = normalise_dim(dim, x.rank)
    if index.rank > 1 or source.shape != (*x.shape[:d], index.numel, *x.shape[d + 1 :])[: x.rank]:
        raise ShapeError(
            f"an index of {list(index.shape)} and a source of {list(source.shape)} "
            f"do not fit dimension {dim} of {list(x.shape)}"
        )
    by = _fold(reduce)
    out = yield Out(x.shape, x.dtype)
    if not source.numel:
        yield cast(x, out, target)
        return
    sizes = x.shape or (1,)
    order = yield from runs(index, (1, index.numel, 1), sizes[d], target)
    source_strides = contiguous(source.shape or (1,))
    strides = {
        "row": (0,) * x.rank,
        "key": tuple(int(k == d) for k in range(x.rank)),
        "v": (*source_strides[:d], 0, *source_strides[d + 1 :])[: x.rank],
    }
    yield _folded(by, x, order, source, strides, source_strides[d], out, target, own=include_self)


@op("aten.index_put.default", wide=True, indexes=per_dim, serves=can_put, fits="x any, indices any, values x")
def index_put(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, *, target: Target
) -> Steps:
    """Compute `x[i, j, …] = values` or `+=`, or put one value where a mask is true. The host serves other masks, more
    than six indices, and sums of int64.

    Unlike PyTorch, which raises, indices that the GPU computed write nothing if they are out of range: checking them
    would need a read back. Others raise. If several values go to one position and are not added, any of them may win.
    """
    compute = accumulated if accumulate else overwritten
    yield from compute(x, indices, values, target)
