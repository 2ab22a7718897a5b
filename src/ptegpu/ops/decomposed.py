"""The pattern of attention as exporters spell it out, and the node that replaces it.

    q · kᵀ, scaled before or after, perhaps in several steps; a mask that is added, or that selects scores to replace;
    softmax, perhaps with zeros for rows that see no key; · v. Views lie between these nodes, and nodes that split and
    merge heads lie around them: kernels read and write through strides instead.

Operators of attention also read and write through strides where other nodes move their operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np

from ..dtypes import FLOATS, DType
from ..graph.graph import Arg, Node, Tensor
from ..graph.match import Either, Leaf, Match, Number, Op, Pattern, find_match
from ..graph.uses import Uses
from .attended import Attended, AttentionOperand, Core, Masking, Reads, ReadStep, walked
from .nodes import copied, result
from .walks import Walk, backwards, is_walk, order_of, strides_of

SOFTMAX = {"aten._softmax.default": math.nan, "aten.softmax.int": math.nan, "aten._safe_softmax.default": 0.0}
OPERATORS = {"et_vk.sdpa.default": math.nan, "aten.scaled_dot_product_attention.default": 0.0}  # of (B, H, S, D)
PRODUCT = "aten.bmm.default"
MUL, DIV = ("aten.mul.Tensor", "aten.mul.Scalar"), ("aten.div.Tensor", "aten.div.Scalar")
WHERE = ("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
FILL = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
NOT = "aten.logical_not.default"


def _has_result_shape(k: int) -> Callable[..., bool]:
    """Return a test that argument k is a tensor of the result's shape."""
    return lambda node, *args: isinstance(args[k], Tensor) and args[k].max_shape == result(node).max_shape


def _adds(node: Node, scores: Arg, mask: Arg, alpha: Arg = 1, *_: Arg) -> bool:
    return alpha == 1 and _has_result_shape(0)(node, scores)


def _of_last(node: Node, x: Arg, dims: Arg, keeps: Arg = False, *_: Arg) -> bool:
    """Return True if the node reduces the last dimension and keeps it."""
    if not isinstance(x, Tensor):
        return False
    return dims in (-1, x.rank - 1, (-1,), (x.rank - 1,)) and bool(keeps) and result(node).max_shape[-1] == 1


def _of_scores(node: Node, x: Arg, dim: Arg, *_: Arg) -> bool:
    """Return True if the node is a softmax over keys."""
    return isinstance(x, Tensor) and x.rank >= 3 and dim in (-1, x.rank - 1) and result(node).dtype is x.dtype


def _is_scaled(node: Node, x: Arg, *_: Arg) -> bool:
    return _has_result_shape(0)(node, x) and isinstance(x, Tensor) and x.dtype in FLOATS


def _scaled(x: Pattern) -> tuple[Op, Op]:
    """Return the patterns of a tensor multiplied or divided by a number."""
    by, over = Number("factor", test=bool), Number("factor", test=bool, of=lambda number: 1.0 / number)
    return Op(MUL, (x, by), swaps=True, when=_is_scaled), Op(DIV, (x, over), when=_is_scaled)


ZERO = Number(test=lambda number: number == 0.0)
ZEROS = Either(
    Op(("aten.full_like.default", "aten.full.default"), (None, ZERO)),
    Leaf(test=lambda t: t.kind == "constant" and not np.any(t.data)),
    ZERO,
)
FLOATING, BOOLS = Leaf("mask", lambda t: t.dtype in FLOATS), Leaf("mask", lambda t: t.dtype is DType.BOOL)
HIDDEN, SHOWN = Number("hidden"), Number("shown")  # the fill where the mask is true, and where it is not

SCALE = _scaled(Leaf("x"))
BIAS = (  # a mask of floats, computed from a mask of bools
    Op(WHERE, (BOOLS, ZERO, SHOWN), when=_has_result_shape(0)),
    Op(WHERE, (BOOLS, HIDDEN, ZERO), when=_has_result_shape(0)),
)
SCORES: Either = Either(*_scaled(lambda: SCORES), Op(PRODUCT, (Leaf("q"), Leaf("k"))))
MASKED = Either(
    Op("aten.add.Tensor", (SCORES, FLOATING), swaps=True, when=_adds),
    Op(WHERE, (BOOLS, HIDDEN, SCORES), when=_has_result_shape(2)),
    Op(WHERE, (BOOLS, SCORES, SHOWN), when=_has_result_shape(1)),
    Op(FILL, (SCORES, BOOLS, HIDDEN), when=_has_result_shape(0)),
    SCORES,
    name="scores",
)
WEIGHTS = Op(tuple(SOFTMAX), (MASKED,), "softmax", when=_of_scores)
LOWEST = Op(("aten.eq.Scalar", "aten.eq.Tensor"), (Leaf("scores", behind=True), Number(test=lambda x: x == -math.inf)))
BLIND = Op(NOT, (Op(("aten.any.dim", "aten.any.dims"), (Op(NOT, (LOWEST,)),), when=_of_last),))  # sees no key
ATTENTION = Op(PRODUCT, (Either(WEIGHTS, Op("aten.where.self", (BLIND, ZEROS, WEIGHTS), "safe")), Leaf("v")))


def attention(node: Node, uses: Uses) -> tuple[Node, set[Node]] | None:
    """Return a node for the attention that ends in the product `node`, and the nodes that it replaces."""
    core = _operator(node) if node.op.name in OPERATORS else _spelled_out(node, uses)
    return None if core is None else _with_moves(core, uses)


def _operator(node: Node) -> Core | None:
    (*operands, mask), a = (*node.args[:4], None)[:4], node.op.named(node.args)
    q, k, v = (t if isinstance(t, Tensor) and t.rank == 4 else None for t in operands)
    if q is None or k is None or v is None or not isinstance(mask, Tensor | None):
        return None
    traits = Masking(-math.inf), a["scale"], OPERATORS[node.op.name], a.get("is_causal", False)
    return Core((node,), q, k, v, mask, *traits)


def _spelled_out(node: Node, uses: Uses) -> Core | None:
    """Return the attention that ends in a product, if no other node reads its intermediate results."""
    match = find_match(node, uses, [ATTENTION], _keeps_order)
    if match is None or not match.is_private() or not {*uses.kept, *uses.mutated}.isdisjoint(node.outs):
        return None
    softmax, t = match.node("softmax"), match.tensors
    scores, empty = softmax.args[0], SOFTMAX[softmax.op.name]
    assert isinstance(scores, Tensor)
    empty = 0.0 if math.isnan(empty) and "safe" in t else empty
    scale = math.prod(match.numbers.get("factor", ())[::-1], start=1.0)
    masking = _masking(match, replaces=True)
    return Core(tuple(match.nodes), t["q"], t["k"], t["v"], t.get("mask"), masking, scale, empty, scores=scores)


def _masking(match: Match, *, replaces: bool) -> Masking:
    for name in ("hidden", "shown"):
        if name in match.numbers:
            return Masking(match.numbers[name][0], replaces, name == "hidden")
    return Masking()


def _keeps_order(node: Node) -> bool:
    """Return True if a walk keeps the order of all elements, at the largest sizes."""
    source, out = node.args[0], node.outs[0]
    if not is_walk(node) or not isinstance(source, Tensor) or not isinstance(out, Tensor) or len(node.outs) != 1:
        return False
    if node.op.view is not None:
        return True
    order = order_of(node)
    if order is None:
        return out.max_shape == source.max_shape
    moved = [k for k in order if source.max_shape[k] != 1]
    return moved == sorted(moved)


def _with_moves(core: Core, uses: Uses) -> tuple[Node, set[Node]] | None:
    """Return a node for the attention and for the nodes around it that strides can replace."""
    reads, tail = _reads(core, uses), _tail(core, uses)
    steps = [step for each in reads or () for step in each.values()]
    around = {*tail, *(step.node for step in steps)}
    if reads is None or (core.scores is None and not any(n.op.walks for n in around)):
        return None  # nothing moves, so the operator's own rule suffices
    nodes = sorted({*core.nodes, *around}, key=uses.place.__getitem__)
    if uses.mutated & {v for n in nodes for v in n.values()}:
        return None
    copies, new = copied(nodes, result(tail[-1]) if tail else core.product)
    tensors = {name: new.get(t, t) for name in ("q", "k", "v", "mask", "scores") if (t := getattr(core, name))}
    inner = replace(
        core,
        nodes=tuple(copies[n] for n in core.nodes),
        masking=next((step.masking for step in steps if step.masking != Masking()), core.masking),
        scale=None if core.scale is None else core.scale * math.prod(step.factor for step in steps),
        **tensors,
    )
    own = {
        new[t]: step._replace(node=copies[step.node], source=step.source and new.get(step.source, step.source))
        for each in reads
        for t, step in each.items()
    }
    return Attended(tuple(copies.values()), inner, own, tuple(copies[n] for n in tail)).node(), {*core.nodes, *tail}


def _reads(core: Core, uses: Uses) -> list[Reads] | None:
    """Return the steps through which queries, keys, values and the mask are read; None if strides do not suffice."""
    operands: list[tuple[Tensor, Reads, Callable[[Walk], object]]] = []
    for o in core.operands:
        scales = core.scores is not None and o.tensor is not core.v
        operands.append((o.tensor, _before(o.tensor, uses, scales=scales), o.place))
    if core.mask is not None:
        rank = core.scores.rank if core.scores else 4
        fits: Callable[[Walk], object] = lambda w: strides_of(w.dims) if len(w.dims) <= rank <= 4 else None
        operands.append((core.mask, _before(core.mask, uses, bools=core.masking == Masking()), fits))
    reads = [steps for each in operands if (steps := _longest(*each)) is not None]
    scaled = {t for steps in reads for t, step in steps.items() if step.factor != 1.0}
    if len(reads) < len(operands) or scaled & {core.v, *(step.read for step in reads[2].values())}:
        return None  # in the second case, the values are scaled, and not only the scores
    return reads


def _before(t: Tensor, uses: Uses, *, scales: bool = False, bools: bool = False) -> Reads:
    """Return the steps through which `t` may be read, the last one first."""
    steps: dict[Tensor, ReadStep] = {}
    while (node := uses.maker.get(t)) is not None:
        if scales and (m := find_match(node, uses, SCALE)) is not None:
            steps[t] = ReadStep(node, m.tensors["x"], m.numbers["factor"][0])
        elif bools and (m := find_match(node, uses, BIAS)) is not None:
            steps[t], bools = ReadStep(node, m.tensors["mask"], masking=_masking(m, replaces=False)), False
        elif is_walk(node):
            steps[t] = ReadStep(node)
        else:
            break
        t = steps[t].read
    return steps


def _longest(t: Tensor, steps: Reads, fits: Callable[[Walk], object]) -> Reads | None:
    """Return as many of the steps as a kernel can read through; None if it cannot read the tensor at all."""
    for count in range(len(steps), -1, -1):
        part = dict(islice(steps.items(), count))
        walk = walked(t, part)
        if walk is not None and fits(walk) is not None:
            return part
    return None


def _tail(core: Core, uses: Uses) -> list[Node]:
    """Return the nodes after the product that only move it, as far as it can be written through them."""
    tail, written, t = [], AttentionOperand(core.product, core.operands[0].outer), core.product
    while t not in uses.kept and len(uses.readers.get(t, ())) == 1:
        (node,) = uses.readers[t]
        if not is_walk(node) or (node.op.view is None and order_of(node) is None) or result(node) in uses.mutated:
            break
        tail.append(node)
        t = result(node)
    while tail and ((y := backwards(tail)) is None or written.place(y) is None):
        tail.pop()
    return tail
