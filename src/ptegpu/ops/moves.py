"""Operators that only move elements of one tensor. One kernel reads it through strides for all of them, except that
larger transpositions go through tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate

from ..errors import ShapeError
from ..graph.graph import Shape, Sym, Tensor
from ..kernels import moves as kernels
from ..plan.target import Target
from ..sizes import largest, smallest
from . import prefix_stable, walks
from .pointwise import Strided, collapse, contiguous, pointwise
from .registry import Dispatch, Out, Steps, SymInt, Work, broadcast, is_one, normalise_dim, op

SELECT, SLICE = "aten.select_copy.int", "aten.slice_copy.Tensor"
FEWEST = 16  # elements along each side of a matrix that is transposed in tiles


@op(
    "aten.permute_copy.default", "aten.permute.default", moves=True, walks=walks.permuted, prefix=prefix_stable.permuted
)
def permute(x: Tensor, dims: list[int], *, target: Target) -> Steps:
    order = walks.order({"dims": dims}, x.rank)
    if sorted(order) != list(range(x.rank)):
        raise ShapeError(f"{dims} is not an order of the {x.rank} dimensions of {list(x.shape)}")
    out = yield Out([x.shape[d] for d in order], x.dtype)
    own = contiguous(x.shape)
    strides = tuple(own[d] for d in order)
    yield _transposed(x, out, strides, target) or pointwise("permute", "a", [Strided(x, strides)], out, target)


def _transposed(x: Tensor, out: Tensor, strides: tuple[int, ...], target: Target) -> Dispatch | None:
    """Return a copy in tiles if neighbours in the tensor are far apart in the output and vice versa, else None."""
    sizes, [walked] = collapse(out.shape, [strides])
    if 0 in sizes or 1 not in walked[:-1] or sizes[-1] % 4:
        return None
    k = walked.index(1)
    r, c = sizes[k], sizes[-1]
    if min(r, c) < FEWEST:
        return None
    places = contiguous(sizes)
    outer = [j for j in range(len(sizes) - 1) if j != k]
    quads = r % 4 == 0 and all(s % 4 == 0 for s in walked if s != 1)
    tiles = (-(-r // kernels.TALL), -(-c // kernels.BROAD))
    params = {"r": r, "c": c, "tiles_r": tiles[0], "tiles_c": tiles[1], "x_c": walked[-1], "y_r": places[k]}
    for n, j in enumerate(outer):
        params |= {f"d{n}": sizes[j], f"x_s{n}": walked[j], f"y_s{n}": places[j]}
    groups = math.prod(tiles) * math.prod(sizes[j] for j in outer)
    return Dispatch(kernels.transposition(x.dtype, len(outer), quads, target), [x], [out], groups, params)


@op("aten.transpose_copy.int", "aten.transpose.int", moves=True, walks=walks.permuted)
def transpose(x: Tensor, dim0: int, dim1: int, *, target: Target) -> Steps:
    yield from permute(x, walks.order({"dim0": dim0, "dim1": dim1}, x.rank), target=target)


@op("aten.t_copy.default", "aten.t.default", moves=True, walks=walks.permuted)
def t(x: Tensor, *, target: Target) -> Steps:
    if x.rank > 2:
        raise ShapeError(f"t takes a matrix, not {list(x.shape)}")
    yield from permute(x, walks.order({}, x.rank), target=target)


@op("aten.expand_copy.default", "aten.expand.default", moves=True, walks=walks.expanded, prefix=prefix_stable.expanded)
def expand(x: Tensor, size: list[int], implicit: bool = False, *, target: Target) -> Steps:
    """Broadcast to `size`; -1 keeps the tensor's own size."""
    lead = len(size) - x.rank
    if lead < 0 or -1 in size[:lead]:
        raise ShapeError(f"{list(x.shape)} cannot be expanded to {size}")
    shape = tuple(x.shape[k - lead] if n == -1 else n for k, n in enumerate(size))
    if any(own not in (n, 1) for own, n in zip(x.shape, shape[lead:], strict=True) if not is_one(own)):
        raise ShapeError(f"{list(x.shape)} cannot be expanded to {size}")
    out = yield Out(shape, x.dtype)
    yield pointwise("expand", "a", [x], out, target)


@op("aten.copy.default", wide=True)
def copy(x: Tensor, source: Tensor, non_blocking: bool = False, *, target: Target) -> Steps:
    """Return `source` in the shape and dtype of `x`."""
    if broadcast(x.shape, source.shape) != x.shape:
        raise ShapeError(f"{list(source.shape)} cannot be copied into {list(x.shape)}")
    out = yield Out(x.shape, x.dtype)
    yield pointwise("copy", "a", [source], out, target, compute=out.dtype)


@op("aten.flip.default", moves=True)
def flip(x: Tensor, dims: list[int], *, target: Target) -> Steps:
    out = yield Out(x.shape, x.dtype)
    strides, offset = list(contiguous(x.shape)), 0
    for d in {normalise_dim(d, x.rank) for d in dims} if x.rank else ():
        offset += (x.shape[d] - 1) * strides[d]
        strides[d] = -strides[d]
    yield pointwise("flip", "a", [Strided(x, tuple(strides), offset)], out, target)


@op("aten.repeat.default", moves=True)
def repeat(x: Tensor, repeats: list[int], *, target: Target) -> Steps:
    lead = len(repeats) - x.rank
    if lead < 0 or any(n < 0 for n in repeats):
        raise ShapeError(f"{list(x.shape)} cannot be repeated {repeats} times")
    own = (1,) * lead + x.shape
    out = yield Out([r * n for r, n in zip(repeats, own, strict=True)], x.dtype)
    shape = tuple(size for pair in zip(repeats, own, strict=True) for size in pair)
    strides = tuple(stride for s in contiguous(own) for stride in (0, s))
    yield pointwise("repeat", "a", [Strided(x, strides)], out, target, shape=shape)


@op("aten.unfold_copy.default", moves=True)
def unfold(x: Tensor, dim: int, size: int, step: int, *, target: Target) -> Steps:
    """Return windows of `size` along `dim`, `step` apart, as a new last dimension."""
    d = normalise_dim(dim, x.rank)
    total = x.shape[d] if x.rank else 1
    if not 0 <= size <= total or step < 1:
        raise ShapeError(f"windows of {size}, {step} apart, do not fit dimension {dim} of {list(x.shape)}")
    shape, strides = list(x.shape), list(contiguous(x.shape))
    along = strides[d] if x.rank else 1
    if x.rank:
        shape[d], strides[d] = (total - size) // step + 1, along * step
    out = yield Out([*shape, size], x.dtype)
    yield pointwise("unfold", "a", [Strided(x, (*strides, along))], out, target)


@op("aten.as_strided_copy.default", moves=True)
def as_strided(x: Tensor, size: list[int], stride: list[int], offset: int | None = None, *, target: Target) -> Steps:
    first = offset or 0
    last = first + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not (0 <= first <= last < x.numel and min(stride, default=0) >= 0):
        raise ShapeError(f"strides {stride} over {size} from {first} reach outside {list(x.shape)}")
    out = yield Out(size, x.dtype)
    yield pointwise("as_strided", "a", [Strided(x, tuple(stride), first)], out, target)


@op("aten.diagonal_copy.default", moves=True)
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1, *, target: Target) -> Steps:
    """Return the diagonal of two dimensions, `offset` above the main one, as a new last dimension."""
    j, k = normalise_dim(dim1, x.rank), normalise_dim(dim2, x.rank)
    if j == k:
        raise ShapeError(f"a diagonal needs two dimensions, not {dim1} and {dim2}")
    own = contiguous(x.shape)
    down, right = max(-offset, 0), max(offset, 0)
    length = largest(smallest(x.shape[j] - down, x.shape[k] - right), 0)
    rest = [d for d in range(x.rank) if d not in (j, k)]
    out = yield Out([*(x.shape[d] for d in rest), length], x.dtype)
    strides = (*(own[d] for d in rest), own[j] + own[k])
    yield pointwise("diagonal", "a", [Strided(x, strides, down * own[j] + right * own[k])], out, target)


@op("aten.pixel_shuffle.default", moves=True)
def pixel_shuffle(x: Tensor, factor: int, *, target: Target) -> Steps:
    """Rearrange (…, C·r², H, W) to (…, C, H·r, W·r)."""
    *batch, channels, h, w = _image(x)
    r = factor
    if r < 1 or channels % (r * r):
        raise ShapeError(f"{channels} channels are not a multiple of {r}²")
    c = channels // (r * r)
    out = yield Out([*batch, c, h * r, w * r], x.dtype)
    n = math.prod(batch)
    source = contiguous((n, c, r, r, h, w))
    strides = tuple(source[k] for k in (0, 1, 4, 2, 5, 3))
    yield pointwise("pixel_shuffle", "a", [Strided(x, strides)], out, target, shape=(n, c, h, r, w, r))


@op("aten.pixel_unshuffle.default", moves=True)
def pixel_unshuffle(x: Tensor, factor: int, *, target: Target) -> Steps:
    """Rearrange (…, C, H·r, W·r) to (…, C·r², H, W).

    Unlike PyTorch, which returns an empty tensor unchanged, it gives empty tensors the same shape as any other: the
    shape rule must not depend on whether there are elements.
    """
    *batch, c, tall, broad = _image(x)
    r = factor
    if r < 1 or tall % r or broad % r:
        raise ShapeError(f"an image of {tall} × {broad} cannot be cut into blocks of {r} × {r}")
    h, w = tall // r, broad // r
    out = yield Out([*batch, c * r * r, h, w], x.dtype)
    n = math.prod(batch)
    source = contiguous((n, c, h, r, w, r))
    strides = tuple(source[k] for k in (0, 1, 3, 5, 2, 4))
    yield pointwise("pixel_unshuffle", "a", [Strided(x, strides)], out, target, shape=(n, c, r, r, h, w))


def _image(x: Tensor) -> Shape:
    if x.rank < 3:
        raise ShapeError(f"an image has at least three dimensions, not {list(x.shape)}")
    return x.shape


def sliced(x: Tensor, dim: int, start: SymInt, step: int, out: Tensor, target: Target) -> Dispatch:
    """Return a copy of every `step`-th element along `dim` from `start` on; the kernel reads a symbolic start."""
    own = contiguous(x.shape)
    strides = (*own[:dim], own[dim] * step, *own[dim + 1 :])
    if isinstance(start, Sym):
        view = Strided(x, strides, sym=start, factor=own[dim], size=x.shape[dim])
    else:
        view = Strided(x, strides, offset=start * own[dim])
    if out.rank < x.rank:  # a selection has lost the dimension
        view = replace(view, strides=(*strides[:dim], *strides[dim + 1 :]))
    return pointwise("slice", "a", [view], out, target)


def span(size: int, start: SymInt | None, end: SymInt | None, step: int) -> tuple[int, int]:
    """Return the first index and the length of a slice. Negative bounds count from the end; all are clamped."""
    if step < 1:
        raise ShapeError(f"a slice needs a positive step, not {step}")

    def bound(value: SymInt | None, default: int) -> int:
        at = default if value is None else value.value if isinstance(value, Sym) else value
        if isinstance(at, int):
            at = max(-(2**31), min(at, 2**31))  # "to the end" is written as a very large number
        return smallest(largest(at + size if at < 0 else at, 0), size)

    first = bound(start, 0)
    return first, largest(-(-(bound(end, size) - first) // step), 0)


def position(x: Tensor, dim: int, index: SymInt) -> int:
    """Return an index into a dimension, counted from the front."""
    at, size = index.value if isinstance(index, Sym) else index, x.shape[dim]
    if not -size <= at < size:
        raise ShapeError(f"index {at} is out of range for dimension {dim} of {list(x.shape)}")
    return at % size


@op(SLICE, "aten.slice.Tensor", moves=True, walks=walks.sliced, prefix=prefix_stable.sliced)
def slice_copy(
    x: Tensor, dim: int = 0, start: SymInt | None = None, end: SymInt | None = None, step: int = 1, *, target: Target
) -> Steps:
    d = normalise_dim(dim, x.rank)
    first, count = span(x.shape[d], start, end, step)
    out = yield Out([*x.shape[:d], count, *x.shape[d + 1 :]], x.dtype)
    yield sliced(x, d, start if isinstance(start, Sym) else first, step, out, target)


@op("aten.narrow_copy.default", moves=True)
def narrow(x: Tensor, dim: int, start: SymInt, length: int, *, target: Target) -> Steps:
    d = normalise_dim(dim, x.rank)
    first, count = span(x.shape[d], start, None, 1)
    if not 0 <= length <= count:
        raise ShapeError(f"{length} elements from {first} on exceed dimension {dim} of {list(x.shape)}")
    out = yield Out([*x.shape[:d], length, *x.shape[d + 1 :]], x.dtype)
    yield sliced(x, d, start if isinstance(start, Sym) else first, 1, out, target)


@dataclass(frozen=True, slots=True)
class SelectedRow(Work):
    """The slice of x at `index` of a dimension."""

    x: Tensor
    dim: int
    index: SymInt
    y: Tensor
    label: str = ""

    def steps(self, target: Target) -> Steps:
        yield replace(sliced(self.x, self.dim, self.index, 1, self.y, target), label=self.label)

    @property
    def first(self) -> int | None:
        """Return the position of its first element in x; None unless it is contiguous and the host knows the index."""
        if isinstance(self.index, Sym) or math.prod(self.x.shape[: self.dim]) != 1:
            return None
        return self.index * self.y.numel


@op(SELECT, "aten.select.int", moves=True, walks=walks.sliced, role="row")
def select(x: Tensor, dim: int, index: SymInt) -> Steps:
    d = normalise_dim(dim, x.rank)
    first = position(x, d, index)
    out = yield Out([*x.shape[:d], *x.shape[d + 1 :]], x.dtype)
    yield SelectedRow(x, d, index if isinstance(index, Sym) else first, out)


@op("aten.split_with_sizes_copy.default", "aten.split_with_sizes.default", moves=True, walks=walks.sliced)
def split_with_sizes(x: Tensor, sizes: list[int], dim: int = 0, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    d = normalise_dim(dim, x.rank)
    if sum(sizes) != x.shape[d] or min(sizes, default=0) < 0 or len(sizes) != len(outs):
        raise ShapeError(f"dimension {dim} of {list(x.shape)} cannot be split into {len(outs)} parts of {sizes}")
    pieces = []
    for size in sizes:
        pieces.append((yield Out([*x.shape[:d], size, *x.shape[d + 1 :]], x.dtype)))
    for piece, start in zip(pieces, accumulate(sizes, initial=0)):
        yield sliced(x, d, start, 1, piece, target)


@op("aten.split_copy.Tensor", "aten.split.Tensor", moves=True, walks=walks.sliced)
def split(x: Tensor, size: int, dim: int = 0, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    """Split into parts of `size`; the last may be smaller."""
    total = x.shape[normalise_dim(dim, x.rank)]
    if size < 1 and total:
        raise ShapeError(f"dimension {dim} of {list(x.shape)} cannot be split into parts of {size}")
    count = -(-total // size) if size and total else 1
    if count != len(outs):
        raise ShapeError(f"dimension {dim} of {list(x.shape)} is {count} parts of {size}, the program has {len(outs)}")
    sizes = [min(size, total - start) for start in range(0, total, size or 1)] or [0]
    yield from split_with_sizes(x, sizes, dim, outs=outs, target=target)


@op("aten.unbind_copy.int", "aten.unbind.int", moves=True, walks=walks.sliced)
def unbind(x: Tensor, dim: int = 0, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    d = normalise_dim(dim, x.rank)
    if x.shape[d] != len(outs):
        raise ShapeError(f"dimension {dim} of {list(x.shape)} cannot be unbound into {len(outs)} parts")
    pieces = []
    for _ in outs:
        pieces.append((yield Out([*x.shape[:d], *x.shape[d + 1 :]], x.dtype)))
    for k, piece in enumerate(pieces):
        yield sliced(x, d, k, 1, piece, target)
