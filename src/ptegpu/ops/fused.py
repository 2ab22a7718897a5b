"""Nodes that were made of several, which they have as data: a class for each kind of fusion. Passes choose the members.

The rule of such a node runs the rules of its members, so it is right at every live size: members that cannot be
computed together are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..dtypes import DType
from ..graph.graph import Arg, Node, Shape, Tensor
from ..graph.schema import Role
from ..kernels.matmul import Finish
from ..plan.target import Target
from .attention_record import Attention, Rotary, Written
from .moves import Row
from .nodes import Launches, apart, formula, launched, leaves, result, tensors
from .norm import Norm
from .pointwise import NAMES, pointwise
from .product import Finishing, Product
from .registry import Dispatch, OpDef, Out, Parameter, Scratch, Steps, is_one
from .walks import Walk, start, strides_of, through

Scalars = dict[str, int | float]


@dataclass(frozen=True, eq=False)
class Fused:
    """The rule of a node that computes what its members do. Each kind of fusion is a subclass."""

    members: tuple[Node, ...]

    role: ClassVar[Role] = "product"

    @property
    def name(self) -> str:
        return f"fused({'+'.join(map(_short, self.members))})"

    @property
    def label(self) -> str:
        """What messages and profiles call the node."""
        return ", ".join(n.name for n in self.members)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The results of the members that are the node's too: all but those that a view stands for."""
        viewed = {n.args[0] for n in self.members if n.op.view is not None}
        return tuple(o for n in self.members for o in tensors(n) if o not in viewed)

    def node(self) -> Node:
        """Return the node of this rule."""
        made = {o for n in self.members for o in n.outs}
        values = dict.fromkeys(v for n in self.members for v in n.values() if v not in made)
        op = OpDef(
            self.name,
            tuple(Parameter(f"x{k}") for k in range(len(values))),
            wants=frozenset({"target", "outs"}),
            steps=self,
            indexes=lambda _: [b for n in self.members for b in n.op.bounds(n.args)],
            role=self.role,
        )
        mutates = tuple(t for n in self.members for t in n.mutates)
        return Node(op, tuple(values), self.results, self.label, mutates)

    def __call__(self, *_: Arg, target: Target, outs: tuple[Tensor, ...]) -> Steps:
        place = dict(zip(self.results, outs, strict=True))
        inner = {v for n in self.members for v in n.values()}
        own = [[place.get(o, o) for o in tensors(n)] for n in self.members]
        for node, made in zip(self.members, own, strict=True):
            for o, out, shape in zip(tensors(node), made, node.op.infer(node.args, made), strict=True):
                if o in inner:  # another member reads it
                    out.shape = shape
                if o in place:
                    yield Out(shape)
        yield from self.computed(own, target)

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        """Compute the node; `own` are the tensors for the results of each member."""
        launches: list[Launches] = []
        for node, made in zip(self.members, own, strict=True):
            if node.op.view is not None:  # what it stands for is made there
                launches[-1] = [replace(w, y=made[0]) for w in launches[-1]]  # type: ignore[type-var]
            else:
                steps = yield from launched(node, made, target)
                launches.append([replace(s, label=s.label or node.name) for s in steps])  # type: ignore[type-var]
        yield from self.together(launches)

    def together(self, launches: list[Launches]) -> Steps:
        """Compute what the members, each with its own launches, do together; what cannot be, one after the other."""
        yield from (step for steps in launches for step in steps)


def _short(node: Node) -> str:
    name = node.op.name
    return name.removeprefix("fused(").removesuffix(")") if node.members else name.split(".")[-2]


class _Only(Fused):
    """A rule whose only result is that of the last member; what the others hand on is nobody else's."""

    @property
    def label(self) -> str:
        return f"{self.members[-1].name} and {len(self.members) - 1} before it"

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (result(self.members[-1]),)


class Chain(_Only):
    """A chain of elementwise operators: one kernel computes their formulas one after the other, in f32."""

    role = ""

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        yield _Text.of(self.members, leaves(self.members), target).alone(own[-1][0], target)


class FinishedProduct(_Only):
    """A product with a chain behind it, maybe of a view of its result: it computes the chain before it stores."""

    @property
    def label(self) -> str:
        return f"{self.members[0].name} and {len(self.members) - 1} after it"

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        (product, *chain), out = self.members, own[-1][0]
        made = result(product)
        if chain[0].op.view is not None:
            made, chain = result(chain[0]), chain[1:]
        others = [t for t in leaves(chain) if t is not made]
        text = _Text.of(chain, [made, *others], target)
        repeated = tuple(k for k, t in enumerate(others) if t.max_shape != result(chain[-1]).max_shape)
        same = made.shape == out.shape and all(
            repeats(t.shape, out.shape) if k in repeated else t.shape == out.shape for k, t in enumerate(others)
        )
        if not same:  # sizes of one that a dynamic dimension has only now
            plain = yield Scratch(made.shape, made.dtype)
            yield from product.op.steps_into(product.args, [plain], target, whole=True)
            yield replace(text, operands=(plain, *others)).alone(out, target)
            return
        finish = text.finish(repeated)
        for step in (yield from launched(product, [out], target)):
            yield replace(step, finish=finish) if isinstance(step, Product) else step


class UnmovedProduct(_Only):
    """A product whose matrix the other members only move: it reads the matrix where it was before."""

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        (*moves, node), out = self.members, own[-1][0]
        match (yield from launched(node, [out], target)):
            case [Product() as p] if (unmoved_ := unmoved(p, moves)) is not None:
                yield unmoved_
            case _:
                yield from apart(self.members, result(node), out, target)


class SiblingProducts(Fused):
    """Products of the same rows: those that are all of their member are computed together, the others after them."""

    def together(self, launches: list[Launches]) -> Steps:
        products, others = [], []
        for steps in launches:
            match steps:
                case [Product() as p]:
                    products.append(p)
                case _:
                    others += steps
        if products:
            yield replace(products[0], siblings=tuple(products[1:]))
        yield from others


class NormedProduct(Fused):
    """A norm, perhaps of rows taken out of a larger tensor, and the product that alone reads it and takes it in."""

    def together(self, launches: list[Launches]) -> Steps:
        match launches:
            case [[Row() as row], *rest] if row.first is None:
                yield row
                yield from self.together(rest)
            case [[Row() as row], [Norm() as norm], [Product() as p]]:
                yield replace(p, norm=replace(norm, row=row))
            case [[Norm() as norm], [Product() as p]]:
                yield replace(p, norm=norm)
            case _:
                yield from Fused.together(self, launches)


class DecodedAttention(Fused):
    """Attention and the rotary embedding and cache writes before it, which it takes in."""

    role = "attention"

    def together(self, launches: list[Launches]) -> Steps:
        match [step for steps in launches for step in steps]:
            case [*before, Attention() as a] if all(isinstance(w, Rotary | Written) for w in before):
                writes = {w.caches[0]: w.values[0] for w in before if isinstance(w, Written)}
                new = (writes[a.k], writes[a.v]) if writes else a.new
                yield replace(a, new=new, rotary=next((w for w in before if isinstance(w, Rotary)), None))
            case _:
                yield from Fused.together(self, launches)


class AttentionProduct(Fused):
    """Attention and the product that alone reads its result, perhaps through views: the product takes it in."""

    role = ""

    def together(self, launches: list[Launches]) -> Steps:
        match launches:
            case [[Attention() as a], [Product() as p]]:
                yield replace(p, attention=a)
            case _:
                yield from Fused.together(self, launches)


def repeats(t: Shape, whole: Shape) -> bool:
    """Return True if a tensor has the last dimensions of another, so that it is read again and again."""
    rank = next((len(t) - k for k, n in enumerate(t) if not is_one(n)), 0)
    return rank <= len(whole) and t[len(t) - rank :] == whole[len(whole) - rank :]


def unmoved(p: Product, moves: Sequence[Node]) -> Product | None:
    """Return the product with its matrix where that was before the moves; None if no kernel can read that."""
    source = moves[0].args[0]
    assert isinstance(source, Tensor)
    walk: Walk | None = start(source)
    for node in moves:
        walk = through(walk, node, result(node)) if walk else None
    if walk is None or len(walk.dims) < 2 or p.window or p.packed or p.int8:
        return None
    *outer, rows, columns = walk.dims
    across, down = (rows, columns) if p.transposed else (columns, rows)  # N and K
    strides, atoms = strides_of((down, across)), [a for dim in outer for a in dim]
    if strides is None or walk.offset != 0:
        return None
    if strides == (p.n, 1):
        p = replace(p, b=source, transposed=False)
    elif strides == (1, p.k):
        p = replace(p, b=source, transposed=True)
    else:
        return None
    if any(a.stride != 0 for a in atoms):
        return p if len(atoms) == 1 and atoms[0].stride == p.k * p.n else None
    if p.bias or p.sets:
        return p if p.batch == 1 else None
    m = p.batch * p.m  # one matrix for all, so that all rows are rows of one product
    return replace(p, batch=1, m=m, y_strides=(m * p.n, p.n, 1))


@dataclass(frozen=True, slots=True)
class _Text:
    """A chain as statements over the letters of its operands, the functions that they call, and their numbers."""

    operands: tuple[Tensor, ...]
    body: str
    helpers: str
    scalars: Scalars

    @classmethod
    def of(cls, chain: Sequence[Node], operands: Sequence[Tensor], target: Target) -> _Text:
        values: dict[Tensor, str] = dict(zip(operands, NAMES, strict=False))
        scalars: Scalars = {}
        helpers, body = [], []
        for k, node in enumerate(chain):
            f = formula(node, target)
            assert f is not None
            inputs = {**dict(zip(NAMES, f.operands, strict=False)), **f.scalars}
            scalars |= {f"n{k}{n}": x for n, x in inputs.items() if not isinstance(x, Tensor)}
            parameters = ["i: u32", *(f"{n}: f32" for n in inputs)]
            arguments = ["i", *(values[x] if isinstance(x, Tensor) else f"n{k}{n}" for n, x in inputs.items())]
            statements = f.body if "return" in f.body else f"return {f.body};"
            helpers.append(f"fn step{k}({', '.join(parameters)}) -> f32 {{ {statements} }}")
            body.append(f"let t{k} = step{k}({', '.join(arguments)});")
            values[result(node)] = f"t{k}"
        return cls(tuple(operands), " ".join([*body, f"return t{len(chain) - 1};"]), "\n".join(helpers), scalars)

    def alone(self, out: Tensor, target: Target) -> Dispatch:
        """Return the kernel that computes nothing else."""
        f32, helpers = DType.F32, self.helpers
        return pointwise(
            "fused", self.body, self.operands, out, target, scalars=self.scalars, compute=f32, helpers=helpers
        )

    def finish(self, repeated: tuple[int, ...]) -> Finishing:
        """Return what a product computes before it stores: its result is the first operand."""
        others = self.operands[1:]
        names = ["i: u32", *(f"{n}: f32" for n in (*NAMES[: len(self.operands)], *self.scalars))]
        wgsl = f"{self.helpers}\nfn apply({', '.join(names)}) -> f32 {{ {self.body} }}"
        kernel = Finish(wgsl, tuple(t.dtype for t in others), tuple(self.scalars), repeated)
        return Finishing(kernel, others, self.scalars | {f"e{k}_size": others[k].numel for k in repeated})
