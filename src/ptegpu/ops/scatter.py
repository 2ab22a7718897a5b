"""Values reduced into a tensor at given indices: the sum, product, mean or extreme of all values for one place.

Values are folded in their order, in f32 or i32, so that results do not depend on chance. Indices are sorted first.
int64 is compared on the GPU, and added or multiplied on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Shape, Sym, Tensor
from ..kernels import scatter as kernels
from ..kernels.scatter import Fold
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .index import Place, advanced, aligned, in_front, one, overwriting, overwritten, plain, several
from .pointwise import cast, collapse, contiguous, pointwise
from .registry import Dispatch, Out, Scratch, Steps, broadcast, normalise_dim, op
from .sort import runs

FOLDS: Mapping[str, Fold] = {
    **{name: name for name in ("sum", "prod", "mean", "amax", "amin")},  # type: ignore[dict-item]
    "add": "sum",
    "multiply": "prod",
}


def _fold(reduce: str) -> Fold:
    if reduce not in FOLDS:
        raise InvalidProgram(f"the reduction '{reduce}' is not one of {', '.join(FOLDS)}")
    return FOLDS[reduce]


def exact(a: Mapping[str, Any]) -> bool:
    """Floats and ints of 32 bits, or int64 that is only compared."""
    return a["x"].dtype is not DType.I64 or a.get("reduce", "sum") in ("amax", "amin")


def writable(a: Mapping[str, Any]) -> bool:
    """What `index_put` writes or adds up on the GPU."""
    if not a["accumulate"]:
        return overwriting(a)
    return plain(a) and a["x"].dtype not in (DType.I64, DType.BOOL)


def _folded(
    by: Fold,
    x: Tensor,
    order: tuple[Tensor, Tensor],
    values: Tensor,
    walks: Mapping[str, tuple[int, ...]],
    step: int,
    out: Tensor,
    target: Target,
    *,
    own: bool = True,
    limits: Shape | None = None,
) -> Dispatch:
    """A dispatch of `kernels.fold` over the elements of `x`: `walks` are strides of rows, keys and values over it."""
    if limits is None:
        sizes, strides = collapse(x.shape, list(walks.values()))
    else:
        sizes, strides = x.shape, list(walks.values())
    kernel = kernels.fold(
        by, x.dtype, values.dtype, store_type(out.dtype, target), len(sizes), limits is not None, target
    )
    params: dict[str, int | float | Sym] = {"n": out.numel, "own": int(own), "length": order[0].shape[1], "step": step}
    params |= {f"d{k}": n for k, n in enumerate(sizes)}
    params |= {f"{name}_s{k}": s for name, walk in zip(walks, strides, strict=True) for k, s in enumerate(walk)}
    params |= {f"limit{k}": n for k, n in enumerate(limits or ())}
    groups = -(-out.numel // kernel.kernel.workgroup)
    return Dispatch(kernel, [x, *order, values], [out], groups, params)


def scattered(by: Fold, x: Tensor, dim: int, index: Tensor, source: Tensor, own: bool, target: Target) -> Steps:
    """The steps of `scatter_*`: an index of the rank of `x` says where along `dim` each element of `source` goes."""
    aligned(x, dim, index)
    if source.rank != index.rank or any(n > m for n, m in zip(index.shape, source.shape)):
        raise ShapeError(f"an index of {list(index.shape)} takes more than a source of {list(source.shape)} has")
    out = yield Out(x.shape, x.dtype)
    if not index.numel:
        yield cast(x, out, target)
        return
    d = normalise_dim(dim, x.rank)
    sizes, named = x.shape or (1,), index.shape or (1,)
    others = (*named[:d], *named[d + 1 :])
    order = yield from runs(index, (math.prod(others), named[d], math.prod(named[d + 1 :])), sizes[d], target)
    lines = contiguous(others)
    walked = contiguous(source.shape or (1,))
    walks = {
        "row": (*lines[:d], 0, *lines[d:]),
        "key": tuple(int(k == d) for k in range(len(sizes))),
        "v": (*walked[:d], 0, *walked[d + 1 :]),
    }
    limits = (*named[:d], sizes[d], *named[d + 1 :])
    if x.rank == 0:
        walks, limits = dict.fromkeys(walks, ()), sizes
    step = walked[d]
    yield _folded(by, x, order, source, walks, step, out, target, own=own, limits=None if limits == sizes else limits)


def accumulated(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, target: Target) -> Steps:
    """The steps of `index_put` that adds up: `x[i, j, …] += values`, which broadcast."""
    place = advanced(x, indices)
    if broadcast(place.shape, values.shape) != place.shape:
        raise ShapeError(f"values of {list(values.shape)} do not fit the indexed {list(place.shape)}")
    out = yield Out(x.shape, x.dtype)
    if 0 in place.shape:
        yield cast(x, out, target)
        return
    dims = [d for d, i in enumerate(indices) if i is not None]
    rest = [d for d in range(x.rank) if d not in dims]
    at, end = in_front(dims), in_front(dims) + len(place.shape) - len(rest)
    sizes = tuple(x.shape[d] for d in dims)
    count = math.prod(place.shape[at:end])
    if len(dims) == 1:
        index = place.indices[0].tensor
    else:
        index = yield Scratch((count,), DType.I32)
        yield _linear(place, at, end, sizes, index, target)
    order = yield from runs(index, (1, count, 1), math.prod(sizes), target)
    if values.numel < math.prod(place.shape):
        spread = yield Scratch(place.shape, values.dtype)
        yield pointwise("expand", "a", [values], spread, target)
        values = spread
    own = contiguous(place.shape)
    walked = dict(zip(rest, (*own[:at], *own[end:]), strict=True))
    keys = dict(zip(dims, contiguous(sizes), strict=True))
    walks = {
        "row": (0,) * x.rank,
        "key": tuple(keys.get(d, 0) for d in range(x.rank)),
        "v": tuple(walked.get(d, 0) for d in range(x.rank)),
    }
    yield _folded("sum", x, order, values, walks, math.prod(place.shape[end:]), out, target)


def _linear(place: Place, at: int, end: int, sizes: Shape, out: Tensor, target: Target) -> Dispatch:
    """Several indices as one into dimensions of these sizes, for each place of their common shape."""
    walked, strides = collapse(place.shape[at:end], [i.strides[at:end] for i in place.indices])
    params: dict[str, int | float | Sym] = {"n": out.numel, **{f"d{k}": n for k, n in enumerate(walked)}}
    for j, (walk, size, stride) in enumerate(zip(strides, sizes, contiguous(sizes), strict=True)):
        params |= {f"i{j}_s{k}": s for k, s in enumerate(walk)}
        params |= {f"i{j}_size": size, f"i{j}_stride": stride}
    kernel = kernels.linear(len(sizes), len(walked), target)
    groups = -(-out.numel // kernel.kernel.workgroup)
    return Dispatch(kernel, [i.tensor for i in place.indices], [out], groups, params)


@op("aten.scatter_add.default", wide=True, fits="x number, index int, source x", indexes=one, serves=exact)
def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, target: Target) -> Steps:
    """`x` plus elements of `source` at the indices along `dim`.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and write
    nothing if they are out of range: checking them would need a read back. Others raise.
    """
    yield from scattered("sum", x, dim, index, source, True, target)


@op("aten.scatter.reduce", wide=True, fits="x number, index int, source x", indexes=one, serves=exact)
def scatter_by(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, target: Target) -> Steps:
    """`x` plus, or times, elements of `source` at the indices along `dim`.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and write
    nothing if they are out of range: checking them would need a read back. Others raise.
    """
    yield from scattered(_fold(reduce), x, dim, index, source, True, target)


@op("aten.scatter_reduce.two", wide=True, fits="x number, index int, source x", indexes=one, serves=exact)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True, *, target: Target
) -> Steps:
    """`x` with the sums, products, means or extremes of what the indices along `dim` send to each place.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and write
    nothing if they are out of range: checking them would need a read back. Others raise.
    """
    yield from scattered(_fold(reduce), x, dim, index, source, include_self, target)


@op("aten.index_reduce.default", wide=True, fits="x number, index int, source x", indexes=one, serves=exact)
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True, *, target: Target
) -> Steps:
    """`x` with the products, means or extremes of the slices of `source` that a vector sends to each place of `dim`.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and write
    nothing if they are out of range: checking them would need a read back. Others raise.
    """
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
    walked = contiguous(source.shape or (1,))
    walks = {
        "row": (0,) * x.rank,
        "key": tuple(int(k == d) for k in range(x.rank)),
        "v": (*walked[:d], 0, *walked[d + 1 :])[: x.rank],
    }
    yield _folded(by, x, order, source, walks, walked[d], out, target, own=include_self)


@op("aten.index_put.default", wide=True, indexes=several, serves=writable, fits="x any, indices any, values x")
def index_put(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, *, target: Target
) -> Steps:
    """`x` with `x[i, j, …] = values`, or `+=`, or one value where a mask is true. Other masks, more than six indices,
    and sums of int64 are the host's.

    Unlike PyTorch, which raises, indices that the GPU computed write nothing if they are out of range: checking them
    would need a read back. Others raise. If several values go to one place and are not added, any of them may win.
    """
    if accumulate:
        yield from accumulated(x, indices, values, target)
    else:
        yield from overwritten(x, indices, values, target)
