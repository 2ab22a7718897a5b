"""Reads and writes at positions given by tensors of indices, which are int32 on the GPU.

The host checks the indices that it has before a run. If the GPU computed them, a negative index counts from the end,
and one out of range reads the nearest element and writes nothing, so no access leaves a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Shape, Sym, Tensor
from ..kernels import index as kernels
from ..kernels.wgsl import COMPUTE, store_type
from ..plan.target import Target
from ..sizes import smallest
from .elementwise import WHERE
from .pointwise import Strided, broadcast_strides, cast, collapse, contiguous, pointwise, walk_params, word
from .registry import Bounded, Dispatch, Number, Out, Scratch, Steps, broadcast, normalise_dim, op

TAKE = "aten.index_select.default"
MOST = 6  # index tensors beside the tensor and the output, or the values and the output, in one dispatch

_COMPUTED = (
    "Unlike PyTorch, which raises, indices that the GPU computed {}if they are out of range: "
    "checking them would need a read back. Others raise."
)
CLAMPED = _COMPUTED.format("take the nearest element ")
NEAREST = _COMPUTED.format("count from the end if they are negative, and take the nearest element ")
UNWRITTEN = _COMPUTED.format("count from the end if they are negative, and write nothing ")


class IndexOperand(NamedTuple):
    """A tensor of indices, its strides over a shape of coordinates, and the size and stride of its dimension."""

    tensor: Tensor
    strides: tuple[int, ...]
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class IndexedElements:
    """The elements of a tensor at some indices: their shape, and strides from its coordinates to tensor and indices."""

    shape: Shape
    strides: tuple[int, ...]  # of the tensor; 0 in the dimensions of an index
    indices: tuple[IndexOperand, ...]

    def params(self, values: tuple[int, ...] | None = None) -> tuple[Shape, dict[str, int | float | Sym]]:
        """Return the collapsed shape and the kernel's parameters; `values` are strides of values to write."""
        strides = {"x": self.strides, **{f"i{j}": i.strides for j, i in enumerate(self.indices)}}
        strides |= {} if values is None else {"v": values}
        sizes, collapsed = collapse(self.shape, list(strides.values()))
        params = {"n": math.prod(self.shape), **walk_params(sizes, dict(zip(strides, collapsed, strict=True)))}
        for j, i in enumerate(self.indices):
            params |= {f"i{j}_size": i.size, f"i{j}_stride": i.stride}
        return sizes, params


def _checked(index: Tensor) -> Tensor:
    if index.dtype is not DType.I32:
        raise InvalidProgram(
            f"an index of {index.dtype.value} is not supported: "
            "a mask makes a shape that depends on the data; use where, or indices of int32 or int64"
        )
    return index


def along(x: Tensor, dim: int, index: Tensor, shape: Shape, strides: tuple[int, ...]) -> IndexedElements:
    """Return elements whose coordinates in `shape` address `x` directly, except in `dim`: there the index does."""
    sizes = x.shape or (1,)
    own = contiguous(sizes)
    if not sizes[dim] and 0 not in shape:
        raise ShapeError(f"dimension {dim} of {list(x.shape)} has no elements to index")
    direct = tuple(0 if k == dim else s for k, s in enumerate(own))
    return IndexedElements(shape, direct[: len(shape)], (IndexOperand(_checked(index), strides, sizes[dim], own[dim]),))


def aligned(x: Tensor, dim: int, index: Tensor, source: Tensor | None = None) -> IndexedElements:
    """Return the elements at positions `index` along `dim`; `index` has the rank of `x` (a 0-d tensor counts as a
    vector of one). If a `source` of values to write is given, it must cover the index.
    """
    sizes, index_sizes = x.shape or (1,), index.shape or (1,)
    d = normalise_dim(dim, len(sizes))
    too_large = any(n > m and k != d for k, (n, m) in enumerate(zip(index_sizes, sizes)))
    if len(sizes) != len(index_sizes) or too_large:
        raise ShapeError(f"an index of {list(index.shape)} does not fit dimension {dim} of {list(x.shape)}")
    elements = along(x, d, index, index.shape, contiguous(index.shape))
    if source is not None and (source.rank != index.rank or any(n > m for n, m in zip(index.shape, source.shape))):
        raise ShapeError(f"an index of {list(index.shape)} exceeds a source of {list(source.shape)}")
    return elements


def in_front(dims: Sequence[int]) -> int:
    """Return the number of other dimensions before the common shape of indices into `dims`."""
    return dims[0] if list(dims) == list(range(dims[0], dims[-1] + 1)) else 0


def advanced(x: Tensor, indices: Sequence[Tensor | None], values: Tensor | None = None) -> IndexedElements:
    """Return `x[i, j, …]`, into which `values` must broadcast. The indices' common shape replaces the dimensions with
    an index: in their place if they are neighbours, else in front.
    """
    index_by_dim = {d: _checked(i) for d, i in enumerate(indices) if i is not None}
    if len(indices) > x.rank or not index_by_dim:
        raise ShapeError(f"{len(indices)} indices do not fit {list(x.shape)}")
    if len(index_by_dim) > MOST:
        raise InvalidProgram(f"{len(index_by_dim)} index tensors are more than the {MOST} that one dispatch can bind")
    common = broadcast(*(i.shape for i in index_by_dim.values()))
    if any(x.shape[d] == 0 for d in index_by_dim) and 0 not in common:
        raise ShapeError(f"a dimension of {list(x.shape)} has no elements to index")
    at = in_front(list(index_by_dim))
    rest = [d for d in range(x.rank) if d not in index_by_dim]
    before, after = rest[:at], rest[at:]
    own = contiguous(x.shape)
    shape = (*(x.shape[d] for d in before), *common, *(x.shape[d] for d in after))
    strides = (*(own[d] for d in before), *(0 for _ in common), *(own[d] for d in after))
    operands = []
    for d, i in index_by_dim.items():
        over = (*(0 for _ in before), *broadcast_strides(i.shape, common), *(0 for _ in after))
        operands.append(IndexOperand(i, over, x.shape[d], own[d]))
    if values is not None and broadcast(shape, values.shape) != shape:
        raise ShapeError(f"values of {list(values.shape)} do not fit the indexed {list(shape)}")
    return IndexedElements(shape, strides, tuple(operands))


def gathered(x: Tensor, elements: IndexedElements, target: Target) -> Steps:
    """Yield the steps whose result is the elements."""
    out = yield Out(elements.shape, x.dtype)
    yield read(x, elements, out, target)


def read(x: Tensor, elements: IndexedElements, out: Tensor, target: Target) -> Dispatch:
    """Return a dispatch that copies the elements to `out`."""
    sizes, params = elements.params()
    rank = len(sizes)
    rows = rank > 0 and sizes[-1] % 4 == 0 and _in_rows(params, rank, len(elements.indices))
    if rows:
        params[f"d{rank - 1}"] = sizes[-1] // 4
    kernel = kernels.take(x.dtype, len(elements.indices), rank, rows, target)
    groups = -(-out.numel // (4 * kernel.kernel.workgroup))
    indices = [i.tensor for i in elements.indices]
    needed = smallest(x.nbytes, out.nbytes) + sum(i.nbytes for i in indices)
    return Dispatch(kernel, [x, *indices], [out], groups, params, read_bytes=needed)


def _in_rows(params: dict[str, int | float | Sym], rank: int, indices: int) -> bool:
    """Return True if four neighbouring outputs are an aligned quad of the tensor."""
    last = rank - 1
    others = [params[f"x_s{k}"] for k in range(last)] + [params[f"i{j}_stride"] for j in range(indices)]
    return (
        params[f"x_s{last}"] == 1
        and all(s % 4 == 0 for s in others if not isinstance(s, Sym))
        and all(params[f"i{j}_s{last}"] == 0 for j in range(indices))
    )


def put(
    x: Tensor, elements: IndexedElements, values: Tensor | Number, strides: tuple[int, ...], target: Target
) -> Steps:
    """Copy `x` and overwrite the elements by `values`, which `strides` over the elements' shape address."""
    out = yield Out(x.shape, x.dtype)
    if 0 in elements.shape:
        yield cast(x, out, target)
        return
    store = store_type(x.dtype, target)
    direct = store is x.dtype
    words = out if direct else (yield Scratch(x.shape, store))
    yield cast(x, words, target)
    reads, dtype = [i.tensor for i in elements.indices], None
    if isinstance(values, Tensor):
        sizes, params = elements.params(strides)
        reads, dtype = [*reads, values], values.dtype
    else:
        sizes, params = elements.params()
        params["value"] = word(values, store)
    kernel = kernels.put(dtype, store, len(elements.indices), len(sizes), target)
    count = math.prod(elements.shape)
    groups = -(-count // kernel.kernel.workgroup)
    changed = smallest(words.nbytes, count * store.size)
    yield Dispatch(kernel, reads, [words], groups, params, write_bytes=changed)
    if not direct:
        yield cast(words, out, target)


def masked(x: Tensor, dim: int, mask: Tensor, value: Tensor, target: Target) -> Steps:
    """Write one value wherever a mask over the dimensions from `dim` on is true."""
    if mask.shape != x.shape[dim : dim + mask.rank]:
        raise ShapeError(f"a mask of {list(mask.shape)} does not fit {list(x.shape)} from dimension {dim} on")
    out = yield Out(x.shape, x.dtype)
    strides = (*(0,) * dim, *contiguous(mask.shape), *(0,) * (x.rank - dim - mask.rank))
    chosen = Strided(mask, strides), Strided(value, (0,) * x.rank), x
    yield pointwise("where", WHERE[COMPUTE[out.dtype]], chosen, out, target, compute=out.dtype)


def overwritten(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, target: Target) -> Steps:
    """Compute `x[i, j, …] = values`. If all but the last index are None, that may be a mask for one value."""
    first = len(indices) - 1
    mask = indices[first]
    if mask is not None and mask.dtype is DType.BOOL and all(i is None for i in indices[:first]) and values.numel == 1:
        yield from masked(x, first, mask, values, target)
        return
    elements = advanced(x, indices, values)
    yield from put(x, elements, values, broadcast_strides(values.shape, elements.shape), target)


def along_dim(a: Mapping[str, Any]) -> Iterable[Bounded]:
    """Bound an index into one dimension, which must not be negative."""
    sizes = a["x"].shape or (1,)
    if -len(sizes) <= a["dim"] < len(sizes):
        yield Bounded(a["index"], 0, sizes[a["dim"]])


def per_dim(a: Mapping[str, Any]) -> Iterable[Bounded]:
    """Bound an index per dimension, which may count from the end."""
    for size, index in zip(a["x"].shape, a["indices"]):
        if index is not None and index.dtype.device is DType.I32:
            yield Bounded(index, -size, size)


def has_few_int_indices(a: Mapping[str, Any]) -> bool:
    """Return False for masks, whose shape depends on the data, and for more indices than a dispatch can bind."""
    indices = [i for i in a["indices"] if i is not None]
    return len(indices) <= MOST and all(i.dtype in (DType.I32, DType.I64) for i in indices)


def can_overwrite(a: Mapping[str, Any]) -> bool:
    """Return True for int indices, and for one value at a mask of the last dimensions."""
    *before, last = a["indices"] or [None]
    masked = last is not None and last.dtype is DType.BOOL and all(i is None for i in before)
    return (masked and a["values"].numel == 1) or has_few_int_indices(a)


@op("aten.gather.default", elements=("x",), indexes=along_dim, fits="x any, index int", differs=NEAREST)
def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False, *, target: Target) -> Steps:
    yield from gathered(x, aligned(x, dim, index), target)


@op(TAKE, elements=("x",), indexes=along_dim, fits="x any, index int", differs=NEAREST)
def index_select(x: Tensor, dim: int, index: Tensor, *, target: Target) -> Steps:
    """Return the slices of `x` along `dim` at a vector of indices."""
    d = normalise_dim(dim, x.rank)
    if index.rank > 1:
        raise ShapeError(f"index_select takes a vector of indices, not {list(index.shape)}")
    shape = (*x.shape[:d], index.numel, *x.shape[d + 1 :]) if x.rank else ()
    yield from gathered(x, along(x, d, index, shape, tuple(int(k == d) for k in range(x.rank))), target)


@op(
    "aten.index.Tensor",
    elements=("x",),
    indexes=per_dim,
    serves=has_few_int_indices,
    fits="x any, indices any",
    differs=CLAMPED,
)
def index_tensor(x: Tensor, indices: list[Tensor | None], *, target: Target) -> Steps:
    """Compute `x[i, j, …]`. The host serves masks and more than six indices."""
    yield from gathered(x, advanced(x, indices), target)


ANY_WINS = f"{UNWRITTEN} If several elements go to one position, any of them may win."


@op("aten.scatter.src", wide=True, indexes=along_dim, fits="x any, index int, source x", differs=ANY_WINS)
def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor, *, target: Target) -> Steps:
    yield from put(x, aligned(x, dim, index, source), source, contiguous(source.shape), target)


@op("aten.scatter.value", wide=True, indexes=along_dim, fits="x any, index int", differs=UNWRITTEN)
def scatter_value(x: Tensor, dim: int, index: Tensor, value: Number, *, target: Target) -> Steps:
    yield from put(x, aligned(x, dim, index), value, (), target)
