"""Attention that was spelled out, computed by the kernels of attention: they read and write through strides instead.

Its members are copies of the nodes that it stands for, so that every live size is what theirs say. Where strides do not
suffice at some sizes, they run one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..graph.graph import Node, Tensor
from ..graph.schema import Role
from ..plan.target import Target
from .attention_record import Attention, Mask, Sizes
from .fused import Fused
from .nodes import apart, result
from .registry import Steps
from .walks import Walk, backwards, order_of, regrouped, size_of, start, strides_of, through

Places = tuple[Sizes, Sizes, Sizes, Sizes]  # of q, k, v and the result


class Masking(NamedTuple):
    """What a mask of bools does to hidden scores: it adds the fill, or replaces them. `Masking()` is of floats."""

    fill: float = 0.0
    instead: bool = False
    hides: bool = False  # where it is true, not where it is false


class Step(NamedTuple):
    """A node whose result a kernel reads through."""

    node: Node
    source: Tensor | None = None  # of what leaves elements in place, and scales them or makes a mask of bools
    factor: float = 1.0
    masking: Masking = Masking()

    @property
    def read(self) -> Tensor:
        first = self.source or self.node.args[0]
        assert isinstance(first, Tensor)
        return first


class Operand(NamedTuple):
    """Queries, keys or values: (batch · heads, rows, elements), or with two dimensions for batch and heads."""

    tensor: Tensor
    outer: tuple[int, int]  # batch and heads
    row: int = -2  # the dimension of rows
    element: int = -1

    def place(self, walk: Walk) -> Sizes | None:
        """Return where attention finds the operand, read by a walk."""
        outer = regrouped([a for dim in walk.dims[:-2] for a in dim], self.outer)
        outers = None if outer is None else strides_of(outer)
        inner = strides_of((walk.dims[self.row], walk.dims[self.element]))
        if outers is None or inner is None or (walk.dims[self.element] and inner[1] != 1):
            return None
        (batch, heads), (length, dim) = self.outer, (size_of(walk.dims[k]) for k in (self.row, self.element))
        return Sizes(batch, length, heads, dim, outers[0], inner[0], outers[1], walk.offset, whole=False)


@dataclass(frozen=True, slots=True)
class Core:
    """An attention without what only moves its operands and its result."""

    nodes: tuple[Node, ...]  # the last product first
    q: Tensor  # (batch · heads, queries, dim), or with two dimensions for batch and heads
    k: Tensor  # (batch · heads, dim, keys), or (batch, heads, keys, dim)
    v: Tensor  # (batch · heads, keys, dim of values)
    mask: Tensor | None
    masking: Masking
    scale: float | None
    empty: float  # the result where nothing is seen
    causal: bool = False
    scores: Tensor | None = None  # (…, heads, queries, keys); without, q, k and v say what their heads are

    @property
    def product(self) -> Tensor:
        """(batch · heads, queries, dim of values)."""
        return result(self.nodes[0])

    @property
    def operands(self) -> tuple[Operand, Operand, Operand]:
        """Queries, keys and values."""
        queries, keys = (_outer(self.scores or x) for x in (self.q, self.k))
        turned = (-1, -2) if self.scores else (-2, -1)
        return Operand(self.q, queries), Operand(self.k, keys, *turned), Operand(self.v, keys)


def _outer(x: Tensor) -> tuple[int, int]:
    """Return batch and heads."""
    *lead, heads, _, _ = x.shape
    return math.prod(lead), heads


Reads = Mapping[Tensor, Step]  # by the results that are read through


def walked(t: Tensor, reads: Reads) -> Walk | None:
    """Return how a tensor is read from where the steps before it lead."""
    step = reads.get(t)
    if step is None:
        return start(t)
    walk = walked(step.read, reads)
    if walk is None or step.source is None:
        return walk and through(walk, step.node, t)
    return walk if step.source.shape == t.shape else None


@dataclass(frozen=True, eq=False)
class Attended(Fused):
    """The rule of a node that stands for an attention and what moves its operands and its result."""

    core: Core
    reads: Reads
    tail: tuple[Node, ...]  # from the product to the result

    role: ClassVar[Role] = ""

    @property
    def name(self) -> str:
        return "fused(attention)"

    @property
    def label(self) -> str:
        return f"attention up to {self.core.nodes[0].name}"

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (result(self.tail[-1]) if self.tail else self.core.product,)

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        out = own[-1][0]
        self.results[0].shape = out.shape
        if not out.numel:
            return
        placed = self.placed()
        if placed is None:
            yield from apart(self.members, self.results[0], out, target)
            return
        (q, k, v), at, mask = placed
        core = self.core
        yield Attention(q.tensor, k.tensor, v.tensor, out, True, core.causal, mask, core.scale, empty=core.empty, at=at)

    def placed(self) -> tuple[list[Walk], Places, Mask | None] | None:
        """Return what is read through strides, and where it and the result are; None where strides do not suffice."""
        core = self.core
        still = [n for n in core.nodes if n.op.walks and order_of(n) is None]  # expand scores to their own shape
        if any(n.args[0].shape != result(n).shape for n in still):  # type: ignore[union-attr]
            return None
        operands = core.operands
        walks = [w for w in (walked(t, self.reads) for t in (core.q, core.k, core.v)) if w is not None]
        y = backwards(self.tail) if self.tail else start(core.product)
        if len(walks) < 3 or y is None:
            return None
        placing = zip((*operands, Operand(core.product, operands[0].outer)), (*walks, y), strict=True)
        at = [operand.place(walk) for operand, walk in placing]
        mask = self._masked(core.mask) if core.mask is not None else None
        match at:
            case [Sizes() as q, Sizes() as k, Sizes() as v, Sizes() as out] if q.dim and (mask or not core.mask):
                return walks, (q, k, v, out), mask
        return None

    def _masked(self, mask: Tensor) -> Mask | None:
        core, walk = self.core, walked(mask, self.reads)
        scores = core.scores.shape if core.scores else (*core.q.shape[:-1], core.k.shape[-2])
        if walk is None or len(scores) > 4 or len(walk.dims) > len(scores):
            return None
        strides = strides_of(walk.dims)
        if strides is None:
            return None
        wanted = scores[len(scores) - len(strides) :]
        by = [s if size_of(dim) == n else 0 for s, dim, n in zip(strides, walk.dims, wanted, strict=True)]
        return Mask(walk.tensor, [0] * (4 - len(by)) + by, walk.offset, *core.masking)
