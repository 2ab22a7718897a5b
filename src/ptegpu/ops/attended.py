"""The node for attention that a program spells out, whose kernel reads and writes through strides.

Its members are copies of the nodes that it replaces, which compute every live size. They run one by one at sizes where
strides do not suffice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..graph.graph import Node, Tensor
from ..graph.schema import Role
from ..plan.target import Target
from .attention_record import AttentionWork, HeadLayout, Mask
from .fused import Fused
from .nodes import apart, result
from .registry import Steps
from .walks import Walk, backwards, order_of, regrouped, size_of, start, strides_of, through


class Masking(NamedTuple):
    """The effect of a mask of bools: the fill is added to hidden scores or replaces them. `Masking()` is for floats."""

    fill: float = 0.0
    replaces: bool = False
    hides: bool = False  # hides scores where it is true, instead of where it is false


class ReadStep(NamedTuple):
    """A node that a kernel reads through: it only moves elements, or it scales them or makes a mask of `source`."""

    node: Node
    source: Tensor | None = None
    factor: float = 1.0
    masking: Masking = Masking()

    @property
    def read(self) -> Tensor:
        first = self.source or self.node.args[0]
        assert isinstance(first, Tensor)
        return first


class AttentionOperand(NamedTuple):
    """Queries, keys or values (batch · heads, rows, elements), or with two dimensions for batch and heads."""

    tensor: Tensor
    outer: tuple[int, int]  # batch and heads
    row: int = -2  # the dimension of rows
    element: int = -1

    def place(self, walk: Walk) -> HeadLayout | None:
        """Return the layout of the operand as a walk reads it; None if strides do not suffice."""
        outer = regrouped([a for dim in walk.dims[:-2] for a in dim], self.outer)
        outers = None if outer is None else strides_of(outer)
        inner = strides_of((walk.dims[self.row], walk.dims[self.element]))
        if outers is None or inner is None or (walk.dims[self.element] and inner[1] != 1):
            return None
        (batch, heads), (length, dim) = self.outer, (size_of(walk.dims[k]) for k in (self.row, self.element))
        return HeadLayout(batch, length, heads, dim, outers[0], inner[0], outers[1], walk.offset, contiguous=False)


@dataclass(frozen=True, slots=True)
class Core:
    """An attention without the nodes that only move its operands and its result."""

    nodes: tuple[Node, ...]  # the last product first
    q: Tensor  # (batch · heads, queries, dim), or with two dimensions for batch and heads
    k: Tensor  # (batch · heads, dim, keys), or (batch, heads, keys, dim)
    v: Tensor  # (batch · heads, keys, dim of values)
    mask: Tensor | None
    masking: Masking
    scale: float | None
    empty: float  # the result where no key is visible
    causal: bool = False
    scores: Tensor | None = None  # (…, heads, queries, keys); if None, q, k and v have a dimension for heads

    @property
    def product(self) -> Tensor:
        """The result of the last product (batch · heads, queries, dim of values)."""
        return result(self.nodes[0])

    @property
    def operands(self) -> tuple[AttentionOperand, AttentionOperand, AttentionOperand]:
        shapes = ((self.scores or x).shape for x in (self.q, self.k))
        queries, keys = ((math.prod(lead), heads) for *lead, heads, _, _ in shapes)
        turned = (-1, -2) if self.scores else (-2, -1)
        return (
            AttentionOperand(self.q, queries),
            AttentionOperand(self.k, keys, *turned),
            AttentionOperand(self.v, keys),
        )


Reads = Mapping[Tensor, ReadStep]  # by the result of the node


def walked(t: Tensor, reads: Reads) -> Walk | None:
    """Return the walk that reads a tensor through the steps before it."""
    step = reads.get(t)
    if step is None:
        return start(t)
    walk = walked(step.read, reads)
    if walk is None or step.source is None:
        return walk and through(walk, step.node, t)
    return walk if step.source.shape == t.shape else None


@dataclass(frozen=True, eq=False)
class Attended(Fused):
    """The rule of a node for an attention and the nodes that move its operands and its result."""

    core: Core
    reads: Reads
    tail: tuple[Node, ...]  # the nodes from the product to the result

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
        places = self.placed()
        if places is None:
            yield from apart(self.members, self.results[0], out, target)
            return
        (q, k, v), at, mask = places
        core = self.core
        yield AttentionWork(
            q.tensor, k.tensor, v.tensor, out, True, core.causal, mask, core.scale, empty=core.empty, at=at
        )

    def placed(self) -> tuple[list[Walk], tuple[HeadLayout, ...], Mask | None] | None:
        """Return the operands' walks, their layouts and the result's, and the mask; None if strides do not suffice."""
        core = self.core
        expanded = [n for n in core.nodes if n.op.walks and order_of(n) is None]  # scores, to their own shape
        if any(n.args[0].shape != result(n).shape for n in expanded):  # type: ignore[union-attr]
            return None
        operands = core.operands
        walks = [w for w in (walked(t, self.reads) for t in (core.q, core.k, core.v)) if w is not None]
        y = backwards(self.tail) if self.tail else start(core.product)
        if len(walks) < 3 or y is None:
            return None
        read = zip((*operands, AttentionOperand(core.product, operands[0].outer)), (*walks, y), strict=True)
        at = tuple(layout for operand, walk in read if (layout := operand.place(walk)) is not None)
        mask = self._masked(core.mask) if core.mask is not None else None
        if len(at) < 4 or not at[0].dim or (core.mask and not mask):
            return None
        return walks, at, mask

    def _masked(self, mask: Tensor) -> Mask | None:
        core, walk = self.core, walked(mask, self.reads)
        scores = core.scores.shape if core.scores else (*core.q.shape[:-1], core.k.shape[-2])
        if walk is None or len(scores) > 4 or len(walk.dims) > len(scores):
            return None
        strides = strides_of(walk.dims)
        if strides is None:
            return None
        sizes = scores[len(scores) - len(strides) :]
        by = [s if size_of(dim) == n else 0 for s, dim, n in zip(strides, walk.dims, sizes, strict=True)]
        return Mask(walk.tensor, [0] * (4 - len(by)) + by, walk.offset, *core.masking)
