"""Reads and writes at positions that tensors of indices name; the indices are int32 on the GPU.

Indices that the host knows are checked before a run. Of those that the GPU computed, a negative one counts from the
end, and one out of range reads the nearest element and writes nothing, so that no access leaves a buffer.
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
from .pointwise import Strided, broadcast_strides, cast, collapse, contiguous, pointwise, word
from .registry import Bounded, Dispatch, Number, Out, Scratch, Steps, broadcast, normalise_dim, op

TAKE = "aten.index_select.default"
MOST = 6  # index tensors beside the tensor and the output, or the values and the output, in one dispatch


class Index(NamedTuple):
    """A tensor of indices, its strides over the shape walked, and the dimension that it indexes."""

    tensor: Tensor
    strides: tuple[int, ...]
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Place:
    """The elements of a tensor that indices name: their shape, and how its coordinates address tensor and indices."""

    shape: Shape
    strides: tuple[int, ...]  # of the tensor; 0 where an index decides
    indices: tuple[Index, ...]

    def params(self, values: tuple[int, ...] | None = None) -> tuple[Shape, dict[str, int | float | Sym]]:
        """The collapsed shape and the kernel's parameters, those of `values` (by strides) among them."""
        walked = {"x": self.strides, **{f"i{j}": i.strides for j, i in enumerate(self.indices)}}
        walked |= {} if values is None else {"v": values}
        sizes, merged = collapse(self.shape, list(walked.values()))
        params: dict[str, int | float | Sym] = {"n": math.prod(self.shape)}
        params |= {f"d{k}": n for k, n in enumerate(sizes)}
        params |= {f"{name}_s{k}": s for name, strides in zip(walked, merged) for k, s in enumerate(strides)}
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


def along(x: Tensor, dim: int, index: Tensor, shape: Shape, strides: tuple[int, ...]) -> Place:
    """Coordinates of `shape` address `x` directly but for `dim`, where the index, through `strides`, decides."""
    sizes = x.shape or (1,)
    own = contiguous(sizes)
    if not sizes[dim] and 0 not in shape:
        raise ShapeError(f"dimension {dim} of {list(x.shape)} has no elements to index")
    direct = tuple(0 if k == dim else s for k, s in enumerate(own))
    return Place(shape, direct[: len(shape)], (Index(_checked(index), strides, sizes[dim], own[dim]),))


def aligned(x: Tensor, dim: int, index: Tensor) -> Place:
    """`index` has the rank of `x` (a scalar counts as a vector of one), and says where along `dim`."""
    sizes, named = x.shape or (1,), index.shape or (1,)
    d = normalise_dim(dim, len(sizes))
    if len(sizes) != len(named) or any(n > m and k != d for k, (n, m) in enumerate(zip(named, sizes, strict=True))):
        raise ShapeError(f"an index of {list(index.shape)} does not fit dimension {dim} of {list(x.shape)}")
    return along(x, d, index, index.shape, contiguous(index.shape))


def in_front(dims: Sequence[int]) -> int:
    """Before which of the other dimensions the common shape of indices into `dims` goes."""
    return dims[0] if list(dims) == list(range(dims[0], dims[-1] + 1)) else 0


def advanced(x: Tensor, indices: Sequence[Tensor | None]) -> Place:
    """`x[i, j, …]`: dimensions with an index give way to the indices' common shape, at their place if they are
    neighbours, else in front."""
    given = {d: _checked(i) for d, i in enumerate(indices) if i is not None}
    if len(indices) > x.rank or not given:
        raise ShapeError(f"{len(indices)} indices do not fit {list(x.shape)}")
    if len(given) > MOST:
        raise InvalidProgram(f"{len(given)} index tensors are more than the {MOST} that one dispatch can bind")
    common = broadcast(*(i.shape for i in given.values()))
    if any(x.shape[d] == 0 for d in given) and 0 not in common:
        raise ShapeError(f"a dimension of {list(x.shape)} has no elements to index")
    at = in_front(list(given))
    rest = [d for d in range(x.rank) if d not in given]
    before, after = rest[:at], rest[at:]
    own = contiguous(x.shape)
    shape = (*(x.shape[d] for d in before), *common, *(x.shape[d] for d in after))
    strides = (*(own[d] for d in before), *(0 for _ in common), *(own[d] for d in after))
    entries = []
    for d, i in given.items():
        over = (*(0 for _ in before), *broadcast_strides(i.shape, common), *(0 for _ in after))
        entries.append(Index(i, over, x.shape[d], own[d]))
    return Place(shape, strides, tuple(entries))


def taken(x: Tensor, place: Place, target: Target) -> Steps:
    """The steps that make a result of the elements."""
    out = yield Out(place.shape, x.dtype)
    yield read(x, place, out, target)


def read(x: Tensor, place: Place, out: Tensor, target: Target) -> Dispatch:
    """The elements, in `out`."""
    sizes, params = place.params()
    rank = len(sizes)
    rows = rank > 0 and sizes[-1] % 4 == 0 and _in_rows(params, rank, len(place.indices))
    if rows:
        params[f"d{rank - 1}"] = sizes[-1] // 4
    kernel = kernels.take(x.dtype, len(place.indices), rank, rows, target)
    groups = -(-out.numel // (4 * kernel.kernel.workgroup))
    needed = smallest(x.nbytes, out.nbytes) + sum(i.tensor.nbytes for i in place.indices)
    return Dispatch(kernel, [x, *(i.tensor for i in place.indices)], [out], groups, params, read_bytes=needed)


def _in_rows(params: dict[str, int | float | Sym], rank: int, indices: int) -> bool:
    """Whether four outputs in a row are neighbours, aligned, in the tensor."""
    last = rank - 1
    apart = [params[f"x_s{k}"] for k in range(last)] + [params[f"i{j}_stride"] for j in range(indices)]
    return (
        params[f"x_s{last}"] == 1
        and all(s % 4 == 0 for s in apart if not isinstance(s, Sym))
        and all(params[f"i{j}_s{last}"] == 0 for j in range(indices))
    )


def put(x: Tensor, place: Place, values: Tensor | Number, strides: tuple[int, ...], target: Target) -> Steps:
    """The steps that copy `x` and write the values, through `strides` over the place's shape, over its elements."""
    out = yield Out(x.shape, x.dtype)
    if 0 in place.shape:
        yield cast(x, out, target)
        return
    store = store_type(x.dtype, target)
    direct = store is x.dtype
    words = out if direct else (yield Scratch(x.shape, store))
    yield cast(x, words, target)
    sizes, params = place.params(strides if isinstance(values, Tensor) else None)
    if not isinstance(values, Tensor):
        params["value"] = word(values, store)
    kernel = kernels.put(
        values.dtype if isinstance(values, Tensor) else None, store, len(place.indices), len(sizes), target
    )
    groups = -(-math.prod(place.shape) // kernel.kernel.workgroup)
    reads = [i.tensor for i in place.indices] + ([values] if isinstance(values, Tensor) else [])
    changed = math.prod(place.shape) * store.size
    yield Dispatch(kernel, reads, [words], groups, params, write_bytes=smallest(words.nbytes, changed))
    if not direct:
        yield cast(words, out, target)


def masked(x: Tensor, dim: int, mask: Tensor, value: Tensor, target: Target) -> Steps:
    """The steps that write one value wherever a mask over the dimensions from `dim` on is true."""
    if mask.shape != x.shape[dim : dim + mask.rank]:
        raise ShapeError(f"a mask of {list(mask.shape)} does not fit {list(x.shape)} from dimension {dim} on")
    out = yield Out(x.shape, x.dtype)
    strides = (*(0,) * dim, *contiguous(mask.shape), *(0,) * (x.rank - dim - mask.rank))
    chosen = Strided(mask, strides), Strided(value, (0,) * x.rank), x
    yield pointwise("where", WHERE[COMPUTE[out.dtype]], chosen, out, target, compute=out.dtype)


def overwritten(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, target: Target) -> Steps:
    """The steps of `x[i, j, …] = values`; where all but the last index are None, that may be a mask for one value."""
    first = len(indices) - 1
    mask = indices[first]
    if mask is not None and mask.dtype is DType.BOOL and all(i is None for i in indices[:first]) and values.numel == 1:
        yield from masked(x, first, mask, values, target)
        return
    place = advanced(x, indices)
    if broadcast(place.shape, values.shape) != place.shape:
        raise ShapeError(f"values of {list(values.shape)} do not fit the indexed {list(place.shape)}")
    yield from put(x, place, values, broadcast_strides(values.shape, place.shape), target)


def one(a: Mapping[str, Any]) -> Iterable[Bounded]:
    """An index into one dimension, never negative."""
    sizes = a["x"].shape or (1,)
    if -len(sizes) <= a["dim"] < len(sizes):
        yield Bounded(a["index"], 0, sizes[a["dim"]])


def several(a: Mapping[str, Any]) -> Iterable[Bounded]:
    """An index per dimension, which may count from the end."""
    for size, index in zip(a["x"].shape, a["indices"]):
        if index is not None and index.dtype.device is DType.I32:
            yield Bounded(index, -size, size)


def plain(a: Mapping[str, Any]) -> bool:
    """No mask, as the shape would depend on the data, and no more indices than a dispatch can bind."""
    given = [i for i in a["indices"] if i is not None]
    return len(given) <= MOST and all(i.dtype in (DType.I32, DType.I64) for i in given)


def overwriting(a: Mapping[str, Any]) -> bool:
    """Plain indices, or a mask after nothing that says where one value goes."""
    *before, last = a["indices"] or [None]
    masked = last is not None and last.dtype is DType.BOOL and all(i is None for i in before)
    return (masked and a["values"].numel == 1) or plain(a)


@op("aten.gather.default", elements=("x",), indexes=one, fits="x any, index int")
def gather(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False, *, target: Target) -> Steps:
    """`x` at the indices along `dim`.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and take the
    nearest element if they are out of range: checking them would need a read back. Others raise.
    """
    yield from taken(x, aligned(x, dim, index), target)


@op(TAKE, elements=("x",), indexes=one, fits="x any, index int")
def index_select(x: Tensor, dim: int, index: Tensor, *, target: Target) -> Steps:
    """The slices of `x` along `dim` that a vector names.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and take the
    nearest element if they are out of range: checking them would need a read back. Others raise.
    """
    d = normalise_dim(dim, x.rank)
    if index.rank > 1:
        raise ShapeError(f"index_select takes a vector of indices, not {list(index.shape)}")
    shape = (*x.shape[:d], index.numel, *x.shape[d + 1 :]) if x.rank else ()
    yield from taken(x, along(x, d, index, shape, tuple(int(k == d) for k in range(x.rank))), target)


@op("aten.index.Tensor", elements=("x",), indexes=several, serves=plain, fits="x any, indices any")
def index_tensor(x: Tensor, indices: list[Tensor | None], *, target: Target) -> Steps:
    """`x[i, j, …]`. Masks and more than six indices are the host's.

    Unlike PyTorch, which raises, indices that the GPU computed take the nearest element if they are out of range:
    checking them would need a read back. Others raise.
    """
    yield from taken(x, advanced(x, indices), target)


@op("aten.scatter.src", wide=True, indexes=one, fits="x any, index int, source x")
def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor, *, target: Target) -> Steps:
    """`x` with elements of `source` at the indices along `dim`.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and write
    nothing if they are out of range: checking them would need a read back. Others raise. If several elements go to one
    place, any of them may win.
    """
    place = aligned(x, dim, index)
    if source.rank != index.rank or any(n > m for n, m in zip(index.shape, source.shape)):
        raise ShapeError(f"an index of {list(index.shape)} takes more than a source of {list(source.shape)} has")
    yield from put(x, place, source, contiguous(source.shape), target)


@op("aten.scatter.value", wide=True, indexes=one, fits="x any, index int")
def scatter_value(x: Tensor, dim: int, index: Tensor, value: Number, *, target: Target) -> Steps:
    """`x` with one value at the indices along `dim`.

    Unlike PyTorch, which raises, indices that the GPU computed count from the end if they are negative, and write
    nothing if they are out of range: checking them would need a read back. Others raise.
    """
    yield from put(x, aligned(x, dim, index), value, (), target)
