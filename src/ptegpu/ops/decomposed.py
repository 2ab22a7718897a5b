"""Attention as exporters spell it out, found in a graph, and computed by the kernels of attention.

    q · kᵀ, scaled before or after, also by parts; a mask that is added, or says which scores are replaced; softmax,
    perhaps with zeros for rows that see nothing; · v. Between them are views, and around them what splits and merges
    heads: the kernels read and write through strides instead.

Operators of attention, too, are read and written through strides where something else moves their operands.
`find` knows the operators; `Attended` is the rule of the node that stands for all of them. Its members are copies of
theirs, so that every live size is what theirs say. Where strides do not suffice at some sizes, they run one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ..dtypes import FLOATS, DType
from ..graph.graph import Arg, Node, Tensor, Value
from ..plan.target import Target
from .attention_record import Attention, Mask, Sizes
from .joined import apart, copied
from .registry import REGISTRY, Out, Parameter, Steps
from .walks import Walk, backwards, is_walk, order_of, regrouped, size_of, start, strides_of, through

SOFTMAX = {"aten._softmax.default": math.nan, "aten.softmax.int": math.nan, "aten._safe_softmax.default": 0.0}
WHERE = ("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
FILL = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
OPERATORS = {"et_vk.sdpa.default": math.nan, "aten.scaled_dot_product_attention.default": 0.0}  # of (B, H, S, D)
Masking = tuple[float, bool, bool]  # of bools: fill, instead, hides
FLOAT: Masking = (0.0, False, False)


class Step(NamedTuple):
    """A node that a kernel reads through, to one of its results."""

    node: Node
    out: Tensor
    source: Tensor | None = None  # of what leaves elements in place, and scales them or makes a mask of bools
    factor: float = 1.0
    masking: Masking = FLOAT

    @property
    def read(self) -> Tensor:
        first = self.source or self.node.args[0]
        assert isinstance(first, Tensor)
        return first


def _walked(root: Tensor, steps: Sequence[Step]) -> Walk | None:
    """The root as it is read through the steps, the last of which comes first."""
    walk: Walk | None = start(root)
    for step in reversed(steps):
        if walk is None or (step.source and step.source.shape != step.out.shape):
            return None
        walk = walk if step.source else through(walk, step.node, step.out)
    return walk


@dataclass(frozen=True, eq=False, slots=True)
class Attended:
    """The rule of a node that computes what its members do."""

    members: tuple[Node, ...]
    sources: Mapping[Tensor, Tensor]  # of what only scales, or makes a mask of bools: its result → what it reads
    q: Tensor  # (batch · heads, queries, dim), or with two dimensions for these
    k: Tensor  # (batch · heads, dim, keys), or (batch, heads, keys, dim)
    v: Tensor  # (batch · heads, keys, dim of values)
    mask: Tensor | None
    masking: Masking
    scale: float | None
    empty: float
    causal: bool
    scores: Tensor | None  # (…, heads, queries, keys); without, q, k and v say what their heads are
    product: Tensor  # (batch · heads, queries, dim of values)
    fixed: tuple[Node, ...]  # that must not change any size: what expands scores to the shape that they have
    tail: tuple[Node, ...]  # from the product to the result

    @property
    def result(self) -> Tensor:
        return _only(self.tail[-1]) if self.tail else self.product

    def __call__(self, *_: Arg, target: Target, outs: tuple[Tensor, ...]) -> Steps:
        for node in self.members:
            made = [o for o in node.outs if isinstance(o, Tensor)]
            for o, shape in zip(made, node.op.infer(node.args, made), strict=True):
                o.shape = shape
        out = yield Out(self.result.shape)
        if not out.numel:
            return
        found = self.placed()
        if found is None:
            yield from apart(self.members, self.result, out, target)
            return
        (q, k, v), at, mask = found
        given = q.tensor, k.tensor, v.tensor, out, True, self.causal
        yield Attention(*given, mask, self.scale, empty=self.empty, at=at)

    def placed(self) -> tuple[tuple[Walk, Walk, Walk], tuple[Sizes, Sizes, Sizes, Sizes], Mask | None] | None:
        """What is read through strides, and where it and the result are; None where strides do not suffice."""
        if any(node.args[0].shape != _only(node).shape for node in self.fixed):  # type: ignore[union-attr]
            return None
        queries, keys = _outer(self.q, self.scores), _outer(self.k, self.scores)
        q, k, v = (self._walk(t) for t in (self.q, self.k, self.v))
        y = backwards(self.tail) if self.tail else start(self.product)
        if q is None or k is None or v is None or y is None:
            return None
        qs, ks = _place(q, queries, -2, -1), _place(k, keys, *((-1, -2) if self.scores else (-2, -1)))
        vs, ys = _place(v, keys, -2, -1), _place(y, queries, -2, -1)
        mask = self._masked() if self.mask is not None else None
        if qs is None or ks is None or vs is None or ys is None or (self.mask is not None and mask is None):
            return None
        return ((q, k, v), (qs, ks, vs, ys), mask) if qs.dim else None

    def _walk(self, t: Tensor) -> Walk | None:
        makers = {o: n for n in self.members for o in n.outs}
        steps: list[Step] = []
        while t in makers:
            steps.append(Step(makers[t], t, self.sources.get(t)))
            t = steps[-1].read
        return _walked(t, steps)

    def _masked(self) -> Mask | None:
        assert self.mask is not None
        walk = self._walk(self.mask)
        scores = self.scores.shape if self.scores else (*self.q.shape[:-1], self.k.shape[-2])
        if walk is None or len(scores) > 4 or len(walk.dims) > len(scores):
            return None
        strides = strides_of(walk.dims)
        if strides is None:
            return None
        wanted = scores[len(scores) - len(strides) :]
        by = [s if size_of(dim) == n else 0 for s, dim, n in zip(strides, walk.dims, wanted, strict=True)]
        return Mask(walk.tensor, [0] * (4 - len(by)) + by, walk.offset, *self.masking)


def _only(node: Node) -> Tensor:
    out = node.outs[0]
    assert isinstance(out, Tensor)
    return out


def _outer(x: Tensor, scores: Tensor | None) -> tuple[int, int]:
    """Batch and heads."""
    *lead, heads, _, _ = scores.shape if scores else x.shape
    return math.prod(lead), heads


def _place(walk: Walk, shape: tuple[int, int], row: int, element: int) -> Sizes | None:
    """A walk over (batch · heads, rows, elements), in the order that is said, as attention has it."""
    outer = regrouped([a for dim in walk.dims[:-2] for a in dim], shape)
    outers = None if outer is None else strides_of(outer)
    inner = strides_of((walk.dims[row], walk.dims[element]))
    if outers is None or inner is None or (walk.dims[element] and inner[1] != 1):
        return None
    length, dim = size_of(walk.dims[row]), size_of(walk.dims[element])
    return Sizes(shape[0], length, shape[1], dim, outers[0], inner[0], outers[1], walk.offset, whole=False)


def _keeps_order(node: Node) -> bool:
    """Whether a walk leaves all elements where they are, at the largest sizes."""
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


@dataclass(slots=True)
class Neighbours:
    """Who makes and who uses each value of a graph; `kept` values are needed outside."""

    makers: Mapping[Value, Node]
    users: Mapping[Value, Sequence[Node]]
    kept: set[Value]
    mutated: set[Tensor]


@dataclass(slots=True)
class _Search:
    """One pattern, followed from its end to its beginnings. `core` goes away with it."""

    near: Neighbours
    core: dict[Node, None] = field(default_factory=dict)

    def made(self, t: Arg, *names: str) -> Node | None:
        """The node of one of these operators that makes `t`; it goes away."""
        node = self.near.makers.get(t) if isinstance(t, Tensor) else None
        if node is None or node.op.name not in names:
            return None
        self.core[node] = None
        return node

    def up(self, t: Arg) -> Arg:
        """Before what keeps the order of elements, which goes away."""
        while isinstance(t, Tensor) and (node := self.near.makers.get(t)) and _keeps_order(node):
            self.core[node] = None
            t = node.args[0]
        return t

    def scaled(self, t: Arg) -> tuple[Node, Tensor, float] | None:
        """A product with a number: its node, the other factor, the number."""
        node = self.near.makers.get(t) if isinstance(t, Tensor) else None
        if node is None or node.op.name not in (
            "aten.mul.Tensor",
            "aten.mul.Scalar",
            "aten.div.Tensor",
            "aten.div.Scalar",
        ):
            return None
        x, y = node.args[0], node.args[1]
        if number_of(x) is not None and "mul" in node.op.name:
            x, y = y, x
        factor = number_of(y)
        if not isinstance(x, Tensor) or not factor or x.max_shape != _only(node).max_shape or x.dtype not in FLOATS:
            return None
        return node, x, factor if "mul" in node.op.name else 1.0 / factor

    def leads(self, t: Arg) -> bool:
        """Whether it is a product of queries and keys, perhaps scaled."""
        probe = _Search(self.near)
        while (found := probe.scaled(t := probe.up(t))) is not None:
            t = found[1]
        return probe.made(t, "aten.bmm.default") is not None


def number_of(a: Arg) -> float | None:
    """A number, also as a constant of one element."""
    if isinstance(a, Tensor):
        one = a.kind == "constant" and a.data is not None and a.data.size == 1
        return float(np.asarray(a.data).reshape(-1)[0]) if one else None
    return float(a) if isinstance(a, int | float) else None


def find(node: Node, near: Neighbours) -> tuple[Node, dict[Node, None]] | None:
    """The attention whose last product `node` is: the node that stands for it, and the nodes that it makes needless."""
    search = _Search(near, {node: None})
    if node.op.name in OPERATORS:
        a = node.op.named(node.args)
        *given, mask = node.args[:4] if len(node.args) > 3 else (*node.args, None)
        if any(not isinstance(t, Tensor) or t.rank != 4 for t in given) or not isinstance(mask, Tensor | None):
            return None
        how = (-math.inf, False, False), a["scale"], OPERATORS[node.op.name], a.get("is_causal", False)
        return _joined(search, node, given, None, mask, *how)
    if node.op.name != "aten.bmm.default":
        return None
    soft = search.up(node.args[0])
    empty = math.nan
    if (chosen := search.made(soft, "aten.where.self")) is not None:
        seen = _is_blank(search, chosen)
        if seen is None:
            return None
        soft, empty = search.up(chosen.args[2]), 0.0
    softmax = search.made(soft, *SOFTMAX)
    if softmax is None or not isinstance(softmax.args[0], Tensor) or _only(softmax).dtype is not softmax.args[0].dtype:
        return None
    scores = softmax.args[0]
    if scores.rank < 3 or softmax.args[1] not in (-1, scores.rank - 1):
        return None
    if chosen is not None and search.up(seen) is not search.up(scores):
        return None
    if not math.isnan(SOFTMAX[softmax.op.name]):
        empty = SOFTMAX[softmax.op.name]
    mask, masking, t = _mask_of(search, scores)
    factor = 1.0
    while (found := search.scaled(t := search.up(t))) is not None:
        scale, t, by = found
        search.core[scale] = None
        factor *= by
    product = search.made(t, "aten.bmm.default")
    if product is None or not _alone(search, node):
        return None
    return _joined(search, node, (*product.args[:2], node.args[1]), scores, mask, masking, factor, empty, False)


def _is_blank(search: _Search, chosen: Node) -> Tensor | None:
    """The scores, if a choice takes zeros where all scores of a row are -inf: not any(not eq(scores, -inf))."""
    if not _is_zero(search, chosen.args[1]):
        return None
    none = search.made(search.up(chosen.args[0]), "aten.logical_not.default")
    some = search.made(search.up(none.args[0]), "aten.any.dim", "aten.any.dims") if none else None
    real = search.made(search.up(some.args[0]), "aten.logical_not.default") if some else None
    low = search.made(search.up(real.args[0]), "aten.eq.Scalar", "aten.eq.Tensor") if real else None
    if some is None or low is None or number_of(low.args[1]) != -math.inf or not isinstance(low.args[0], Tensor):
        return None
    along, keeps = (*some.args[1:], False)[:2]
    rank = low.args[0].rank
    last = along in (-1, rank - 1) or along in ((-1,), (rank - 1,))
    return low.args[0] if last and keeps and _only(some).max_shape[-1] == 1 else None


def _is_zero(search: _Search, a: Arg) -> bool:
    filled = search.made(search.up(a), "aten.full_like.default", "aten.full.default")
    if filled is not None:
        return number_of(filled.args[1]) == 0.0
    return (isinstance(a, Tensor) and a.kind == "constant" and not np.any(a.data)) or number_of(a) == 0.0


def _mask_of(search: _Search, scores: Tensor) -> tuple[Tensor | None, Masking, Arg]:
    """A mask, what its bools do, and the scores before it."""
    t = search.up(scores)
    node = search.near.makers.get(t) if isinstance(t, Tensor) else None
    if node is None:
        return None, FLOAT, t
    shape = _only(node).max_shape
    if node.op.name == "aten.add.Tensor" and number_of((*node.args, 1)[2]) == 1.0:
        for x, mask in (node.args[:2], node.args[1::-1]):
            fits = isinstance(x, Tensor) and x.max_shape == shape and isinstance(mask, Tensor) and mask.dtype in FLOATS
            if fits and search.leads(x):
                search.core[node] = None
                return mask, FLOAT, x  # type: ignore[return-value]
    if node.op.name in WHERE + FILL:
        x, y = node.args[1:3]
        where = node.args[0]
        if node.op.name in FILL:
            where, x, y = x, y, where
        hides = number_of(x) is not None
        fill, other = (number_of(x), y) if hides else (number_of(y), x)
        fits = isinstance(other, Tensor) and other.max_shape == shape
        if (
            fill is not None
            and fits
            and isinstance(where, Tensor)
            and where.dtype is DType.BOOL
            and search.leads(other)
        ):
            search.core[node] = None
            return where, (fill, True, hides), other
    return None, FLOAT, t


def _alone(search: _Search, last: Node) -> bool:
    """Whether nobody else needs what goes away."""
    near, results = search.near, [o for n in search.core if n is not last for o in n.outs]
    if any(o in near.kept or o in near.mutated for o in (*results, *last.outs)):
        return False
    return all(user in search.core for o in results for user in near.users.get(o, ()))


def _before(search: _Search, t: Arg, *, scales: bool = False, mask: Masking | None = None) -> list[Step]:
    """What `t` may be read through, the last one first."""
    steps: list[Step] = []
    while isinstance(t, Tensor) and (node := search.near.makers.get(t)) is not None:
        found = search.scaled(t) if scales else None
        bools = _bools(node) if mask == FLOAT else None
        if found is not None:
            steps.append(Step(node, t, found[1], found[2]))
        elif bools is not None:
            mask = bools[1]
            steps.append(Step(node, t, bools[0], masking=mask))
        elif is_walk(node):
            steps.append(Step(node, t))
        else:
            break
        t = steps[-1].read
    return steps


def _bools(node: Node) -> tuple[Tensor, Masking] | None:
    """What a choice between 0 and another number is made by."""
    if node.op.name not in WHERE or not isinstance(where := node.args[0], Tensor) or where.dtype is not DType.BOOL:
        return None
    x, y = map(number_of, node.args[1:3])
    if x is None or y is None or 0.0 not in (x, y) or where.max_shape != _only(node).max_shape:
        return None
    return where, (y, False, False) if x == 0.0 else (x, False, True)


def _tail(near: Neighbours, t: Tensor) -> list[Node]:
    """What only moves a product, and is all that is made of it."""
    tail: list[Node] = []
    while t not in near.kept and len(near.users.get(t, ())) == 1:
        node = near.users[t][0]
        if not is_walk(node) or (node.op.view is None and order_of(node) is None) or _only(node) in near.mutated:
            break
        tail.append(node)
        t = _only(node)
    return tail


def _joined(
    search: _Search,
    last: Node,
    given: Sequence[Arg],
    scores: Tensor | None,
    mask: Tensor | None,
    masking: Masking,
    factor: float | None,
    empty: float,
    causal: bool,
) -> tuple[Node, dict[Node, None]] | None:
    """As much around the core as strides can stand for goes into the node."""
    q, k, v = given
    assert isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)
    queries, keys, read = _outer(q, scores), _outer(k, scores), []
    for t, outer, ends in (q, queries, (-2, -1)), (k, keys, (-1, -2) if scores else (-2, -1)), (v, keys, (-2, -1)):
        steps = _before(search, t, scales=scores is not None and t is not v)
        read.append(_longest(t, steps, lambda w, outer=outer, ends=ends: _place(w, outer, *ends)))  # type: ignore[misc]
    if mask is not None:
        steps, rank = _before(search, mask, mask=masking), scores.rank if scores else 4
        read.append(_longest(mask, steps, lambda w: len(w.dims) <= rank <= 4 and strides_of(w.dims)))
    if any(steps is None for steps in read):
        return None
    steps = [step for found in read for step in found or ()]
    if {s.out for s in steps if s.factor != 1.0} & {v, *(s.read for s in read[2] or ())}:
        return None  # values that are scaled, not only scores
    tail = _tail(search.near, _only(last))
    while tail and ((y := backwards(tail)) is None or _place(y, queries, -2, -1) is None):
        tail.pop()
    if scores is None and not any(n.op.walks for n in (*tail, *(step.node for step in steps))):
        return None  # there is nothing that its own rule would not do
    core = {**search.core, **dict.fromkeys(tail)}
    order = {n: k for k, n in enumerate(dict.fromkeys(search.near.makers.values()))}
    nodes = sorted({*core, *(step.node for step in steps)}, key=order.__getitem__)
    if search.near.mutated & {v for n in nodes for v in n.values()}:
        return None
    result = _only(tail[-1] if tail else last)
    copies, known = copied(nodes, result)
    masking = next((step.masking for step in steps if step.masking != FLOAT), masking)

    def own(t: Arg) -> Tensor:
        assert isinstance(t, Tensor)
        return known.get(t, t)

    rule = Attended(
        tuple(copies.values()),
        {own(s.out): own(s.source) for s in steps if s.source},
        q=own(q),
        k=own(k),
        v=own(v),
        mask=None if mask is None else own(mask),
        masking=masking,
        scale=None if factor is None else factor * math.prod(s.factor for s in steps),
        empty=empty,
        causal=causal,
        scores=None if scores is None else own(scores),
        product=own(_only(last)),
        fixed=tuple(copies[n] for n in search.core if n.op.walks and order_of(n) is None),
        tail=tuple(copies[n] for n in tail),
    )
    return _node(rule, replace(last, name=f"attention up to {last.name}")), core


def _longest(t: Arg, steps: list[Step], fits: Callable[[Walk], object]) -> list[Step] | None:
    """As many of the steps as a kernel can read through; None if it cannot even read what they lead to."""
    assert isinstance(t, Tensor)
    for count in range(len(steps), -1, -1):
        walk = _walked(steps[count - 1].read if count else t, steps[:count])
        if walk is not None and fits(walk) not in (None, False):
            return steps[:count]
    return None


def widened(node: Node, near: Neighbours) -> tuple[dict[Node, Node], set[Node]] | None:
    """Linears of the same x that only this attention reads, as one: the nodes that take the place of others, and those
    that go. Queries, keys and values are then columns of one result."""
    rule = node.op.steps
    if not isinstance(rule, Attended):
        return None
    groups: dict[Arg, list[Node]] = {}
    for root in dict.fromkeys(v for v in node.args if isinstance(v, Tensor)):
        maker = near.makers.get(root)
        if maker is not None and _is_fixed_linear(maker, near) and near.users[root] == [node] and root not in near.kept:
            groups.setdefault(maker.args[0], []).append(maker)
    found: dict[Node, Node] = {}
    slices: list[Node] = []
    for linears in groups.values():
        if len(linears) > 1 and len({(*_only(n).max_shape[:-1], _only(n).dtype) for n in linears}) == 1:
            wide, parts = _side_by_side(linears)
            found[min(linears, key=list(near.makers.values()).index)] = wide
            slices += parts
    if not found:
        return None
    wider = replace(rule, members=(*slices, *rule.members))
    if wider.placed() is None:
        return None
    gone = {near.makers[_only(n)] for n in slices}
    return {**found, node: _node(wider, node)}, gone | {node}


def _is_fixed_linear(node: Node, near: Neighbours) -> bool:
    """Whether it is a linear with a weight and a bias that never vary, and are nobody else's."""
    if node.op.name != "aten.linear.default" or not isinstance(node.args[1], Tensor) or node.args[1].rank != 2:
        return False
    given = [t for t in node.args[1:] if isinstance(t, Tensor)]
    return all(t.kind == "constant" and len(near.users[t]) == 1 and t.rank == 3 - k for k, t in enumerate(given, 1))


def _side_by_side(linears: Sequence[Node]) -> tuple[Node, list[Node]]:
    """One linear for all, and what cuts its result into theirs."""
    first, results = linears[0], [_only(n) for n in linears]
    weights = [_data(n.args[1]) for n in linears]
    zeros = [np.zeros(len(w), w.dtype) for w in weights]
    biases = [
        zero if n.args[2:3] in ((), (None,)) else _data(n.args[2]) for n, zero in zip(linears, zeros, strict=True)
    ]
    weight, bias = (
        Tensor(f"{first.name} {name}", DType.of(data.dtype), data.shape, "constant", data)
        for name, data in (("weights", np.concatenate(weights)), ("biases", np.concatenate(biases)))
    )
    shape = (*results[0].max_shape[:-1], len(_data(weight)))
    out = Tensor(f"{results[0].name} and more", results[0].dtype, shape)
    wide = replace(first, args=(first.args[0], weight, bias), outs=(out,), name=", ".join(n.name for n in linears))
    cuts, start_ = [], 0
    for y in results:
        end = start_ + y.max_shape[-1]
        cuts.append(Node(REGISTRY["aten.slice_copy.Tensor"], (out, -1, start_, end, 1), (y,), f"part of {wide.name}"))
        start_ = end
    return wide, cuts


def _data(t: Arg) -> np.ndarray:
    assert isinstance(t, Tensor) and t.data is not None
    return t.data


def _node(rule: Attended, like: Node) -> Node:
    """The node of a rule, in another one's place."""
    made = {o for n in rule.members for o in n.outs}
    given = tuple(dict.fromkeys(v for n in rule.members for v in n.values() if v not in made))
    op = replace(
        like.op,
        name="fused(attention)",
        parameters=tuple(Parameter(f"x{k}") for k in range(len(given))),
        wants=frozenset({"target", "outs"}),
        steps=rule,
        splits=(),
        fits=None,
        role="",
    )
    return Node(op, given, (rule.result,), like.name)
