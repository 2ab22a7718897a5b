"""Strides instead of copies: how a kernel reads a tensor through operators that only move its elements.

A dimension is a list of *atoms*, outermost first, each with a size and a stride in elements of the tensor that is read.
A view that merges two dimensions keeps the atoms of both, so most views need no copy either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ..graph.graph import Node, Shape, Sym, Tensor
from ..sizes import largest, smallest
from .pointwise import contiguous
from .registry import is_one, normalise_dim


class Atom(NamedTuple):
    size: int
    stride: int


Dims: TypeAlias = tuple[tuple[Atom, ...], ...]
Movement: TypeAlias = tuple[Dims, int]  # dimensions and offset
Named: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Walk:
    """A tensor read through the operators that move its elements."""

    tensor: Tensor
    dims: Dims
    offset: int = 0


def start(x: Tensor) -> Walk:
    """Return the walk over the tensor itself."""
    return Walk(x, grouped(x.shape, contiguous(x.shape)))


def grouped(shape: Shape, strides: Sequence[int]) -> Dims:
    return tuple(() if is_one(n) else (Atom(n, s),) for n, s in zip(shape, strides, strict=True))


def is_walk(node: Node) -> bool:
    """Return True if strides can express what the node does."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Tensor) or any(not isinstance(o, Tensor) or o.dtype is not first.dtype for o in node.outs):
        return False
    return not node.mutates and (node.op.view is not None or node.op.walks is not None)


def through(walk: Walk, node: Node, out: Tensor) -> Walk | None:
    """Return the walk over the node's result `out` at the live shapes; None if strides cannot express it."""
    if node.op.view is not None:
        dims = regrouped([a for dim in walk.dims for a in dim], out.shape)
        return None if dims is None else Walk(walk.tensor, dims, walk.offset)
    assert node.op.walks is not None
    movement = node.op.walks(node.op.named(node.args), walk.dims, out, node.outs.index(out))
    return None if movement is None else Walk(walk.tensor, movement[0], walk.offset + movement[1])


def regrouped(atoms: Sequence[Atom], shape: Sequence[int]) -> Dims | None:
    """Return the atoms as dimensions of these sizes, splitting atoms if necessary; None if they do not fit."""
    left = list(reversed(atoms))
    dims: list[tuple[Atom, ...]] = []
    for n in shape:
        if is_one(n):
            dims.append(())
            continue
        if left and left[-1].size == n:  # also for size 1: this comparison alone decides for more sizes
            dims.append((left.pop(),))
            continue
        group: list[Atom] = []
        have: Any = 1
        while have != n:
            if not left:
                return None
            size, stride = left.pop()
            if have * size == n or (have * size and n % (have * size) == 0):
                group.append(Atom(size, stride))
                have = have * size
            elif have and n % have == 0 and size % (n // have) == 0:
                outer = n // have
                group.append(Atom(outer, stride * (size // outer)))
                left.append(Atom(size // outer, stride))
                have = n
            else:
                return None
        dims.append(tuple(group))
    return tuple(dims) if all(a.size == 1 for a in left) else None


def backwards(chain: Sequence[Node]) -> Walk | None:
    """Return the walk that writes the first node's operand straight into the last result of a chain of views and
    permutations.
    """
    walk: Walk | None = start(last(chain[-1]))
    for node in reversed(chain):
        source = node.args[0]
        assert walk is not None and isinstance(source, Tensor)
        if node.op.view is not None:
            dims = regrouped([a for dim in walk.dims for a in dim], source.shape)
        else:
            order = order_of(node)
            dims = None if order is None else tuple(walk.dims[order.index(k)] for k in range(len(order)))
        if dims is None:
            return None
        walk = Walk(walk.tensor, dims, walk.offset)
    return walk


def last(node: Node) -> Tensor:
    out = node.outs[-1]
    assert isinstance(out, Tensor)
    return out


def order_of(node: Node) -> list[int] | None:
    """Return the order in which a permutation arranges the dimensions of its operand; None for other operators."""
    source = node.args[0]
    if node.op.walks is not permuted or not isinstance(source, Tensor):
        return None
    return order(node.op.named(node.args), source.rank)


def strides_of(dims: Dims) -> tuple[int, ...] | None:
    """Return one stride for each dimension, 0 along those of size 1; None if a dimension has several strides."""
    strides_by_dim = [[a.stride for a in dim if len(dim) == 1 or a.size != 1] for dim in dims]
    if any(len(strides) > 1 for strides in strides_by_dim):
        return None
    return tuple(s[0] if s else 0 for s in strides_by_dim)


def size_of(dim: tuple[Atom, ...]) -> int:
    return math.prod(a.size for a in dim)


# The rules that operators declare (`Traits.walks`). They get the arguments by name, the dimensions of the first one, a
# result and its number; they return the result's dimensions and its offset.


def permuted(a: Named, dims: Dims, out: Tensor, number: int) -> Movement:
    return tuple(dims[d] for d in order(a, len(dims))), 0


def order(a: Named, rank: int) -> list[int]:
    """Return the order of a permutation from its arguments: `dims`, two that it swaps, or none to reverse all."""
    if "dims" in a:
        return [normalise_dim(d, rank) for d in a["dims"]]
    dims = list(range(rank))
    if "dim0" not in a:
        return dims[::-1]
    j, k = normalise_dim(a["dim0"], rank), normalise_dim(a["dim1"], rank)
    if dims:
        dims[j], dims[k] = k, j
    return dims


def expanded(a: Named, dims: Dims, out: Tensor, number: int) -> Movement:
    lead = out.rank - len(dims)
    front = grouped(out.shape[:lead], [0] * lead)
    own = zip(dims, out.shape[lead:], strict=True)
    return (*front, *(dim if size_of(dim) == n else (Atom(n, 0),) for dim, n in own)), 0


def sliced(a: Named, dims: Dims, out: Tensor, number: int) -> Movement | None:
    """Handle slices, selections, and the parts of a split."""
    d, selects = normalise_dim(a["dim"], len(dims)), out.rank < len(dims)
    place = next((a[name] for name in ("index", "start") if name in a), number)
    if "sizes" in a or "size" in a:
        place = sum(a["sizes"][:number]) if "sizes" in a else number * a["size"]
    if isinstance(place, Sym) or a.get("step", 1) != 1 or len(dims[d]) > 1:
        return None
    place, size = place or 0, size_of(dims[d])
    stride = dims[d][0].stride if dims[d] else 0
    first = smallest(largest(place + size if place < 0 else place, 0), size)
    if selects:
        return (*dims[:d], *dims[d + 1 :]), first * stride
    atoms = () if is_one(out.shape[d]) else (Atom(out.shape[d], stride),)
    return (*dims[:d], atoms, *dims[d + 1 :]), first * stride
