"""Fused nodes, with a class for each kind of fusion. Passes choose the members, which the node keeps as data.

The rule of a fused node runs the rules of its members, so it is right at every live size: members that cannot be fused
at the current sizes are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..dtypes import DType
from ..graph.graph import Arg, Node, Shape, Tensor
from ..graph.schema import Role
from ..kernels.matmul import Epilogue
from ..plan.target import Target
from .attention_record import AttentionWork, CacheWrite, Rotary
from .moves import SelectedRow
from .nodes import Launches, apart, formula, launched, leaves, result, tensors
from .norm import RmsNorm
from .pointwise import NAMES, pointwise
from .product import BoundEpilogue, Product
from .registry import Dispatch, OpDef, Out, Parameter, Scratch, Steps, is_one
from .tensor_core_products import ProductChain
from .walks import Walk, start, strides_of, through

Scalars = dict[str, int | float]


@dataclass(frozen=True, eq=False)
class Fused:
    """The rule of a fused node. Each kind of fusion is a subclass."""

    members: tuple[Node, ...]

    role: ClassVar[Role] = "product"

    @property
    def name(self) -> str:
        return f"fused({'+'.join(map(_short, self.members))})"

    @property
    def label(self) -> str:
        """The name of the node in messages and profiles."""
        return ", ".join(n.name for n in self.members)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The results of the node: those of its members, except for tensors that a member views."""
        viewed = {n.args[0] for n in self.members if n.op.view is not None}
        return tuple(o for n in self.members for o in tensors(n) if o not in viewed)

    def node(self) -> Node:
        inner = {o for n in self.members for o in n.outs}
        values = dict.fromkeys(v for n in self.members for v in n.values() if v not in inner)
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
        for node, outputs in zip(self.members, own, strict=True):
            for o, out, shape in zip(tensors(node), outputs, node.op.infer(node.args, outputs), strict=True):
                if o in inner:  # another member reads it
                    out.shape = shape
                if o in place:
                    yield Out(shape)
        yield from self.computed(own, target)

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        """Compute the node; `own` are the tensors for the results of each member."""
        launches: list[Launches] = []
        for node, outputs in zip(self.members, own, strict=True):
            if node.op.view is not None:  # the work before it writes the view directly
                launches[-1] = [replace(w, y=outputs[0]) for w in launches[-1]]  # type: ignore[type-var]
            else:
                steps = yield from launched(node, outputs, target)
                launches.append([replace(s, label=s.label or node.name) for s in steps])  # type: ignore[type-var]
        yield from self.joined(launches)

    def joined(self, launches: list[Launches]) -> Steps:
        """Join the members' launches where possible; hand on the others in order."""
        yield from (step for steps in launches for step in steps)


def _short(node: Node) -> str:
    name = node.op.name
    return name.removeprefix("fused(").removesuffix(")") if node.members else name.split(".")[-2]


class _SingleResult(Fused):
    """A rule whose only result is that of the last member; no other node reads the results in between."""

    @property
    def label(self) -> str:
        return f"{self.members[-1].name} and {len(self.members) - 1} before it"

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (result(self.members[-1]),)


class Chain(_SingleResult):
    """A chain of elementwise operators, whose formulas one kernel computes in order, in f32."""

    role = ""

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        yield _ChainText.of(self.members, leaves(self.members), target).dispatch(own[-1][0], target)


class FinishedProduct(_SingleResult):
    """A product with the elementwise chain that reads it, perhaps through a view, as its epilogue."""

    @property
    def label(self) -> str:
        return f"{self.members[0].name} and {len(self.members) - 1} after it"

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        (product, *chain), out = self.members, own[-1][0]
        read = result(product)
        if chain[0].op.view is not None:
            read, chain = result(chain[0]), chain[1:]
        others = [t for t in leaves(chain) if t is not read]
        text = _ChainText.of(chain, [read, *others], target)
        repeated = tuple(k for k, t in enumerate(others) if t.max_shape != result(chain[-1]).max_shape)
        same = read.shape == out.shape and all(
            repeats(t.shape, out.shape) if k in repeated else t.shape == out.shape for k, t in enumerate(others)
        )
        if not same:  # a dynamic dimension is 1 in this call, so operands broadcast
            plain = yield Scratch(read.shape, read.dtype)
            yield from product.op.steps_into(product.args, [plain], target, whole=True)
            yield replace(text, operands=(plain, *others)).dispatch(out, target)
            return
        epilogue = text.epilogue(repeated)
        for step in (yield from launched(product, [out], target)):
            yield replace(step, epilogue=epilogue) if isinstance(step, Product) else step


class UnmovedProduct(_SingleResult):
    """A product and the nodes that only move its matrix, which it reads from the original place."""

    def computed(self, own: list[list[Tensor]], target: Target) -> Steps:
        (*moves, node), out = self.members, own[-1][0]
        match (yield from launched(node, [out], target)):
            case [Product() as p] if (direct := unmoved(p, moves)) is not None:
                yield direct
            case _:
                yield from apart(self.members, result(node), out, target)


class SiblingProducts(Fused):
    """Products of the same rows. Members with further steps are computed after the others."""

    def joined(self, launches: list[Launches]) -> Steps:
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
    """A norm, perhaps of rows taken out of a larger tensor, and the product that is its only reader and computes it."""

    def joined(self, launches: list[Launches]) -> Steps:
        match launches:
            case [[SelectedRow() as row], *rest] if row.first is None:
                yield row
                yield from self.joined(rest)
            case [[SelectedRow() as row], [RmsNorm() as norm], [Product() as p]]:
                yield replace(p, norm=replace(norm, row=row))
            case [[RmsNorm() as norm], [Product() as p]]:
                yield replace(p, norm=norm)
            case _:
                yield from super().joined(launches)


class DecodedAttention(Fused):
    """Attention with the rotary embedding and the cache writes before it, which its kernel may compute."""

    role = "attention"

    def joined(self, launches: list[Launches]) -> Steps:
        match [step for steps in launches for step in steps]:
            case [*before, AttentionWork() as a] if all(isinstance(w, Rotary | CacheWrite) for w in before):
                writes = {w.caches[0]: w.values[0] for w in before if isinstance(w, CacheWrite)}
                new = (writes[a.k], writes[a.v]) if writes else a.new
                yield replace(a, new=new, rotary=next((w for w in before if isinstance(w, Rotary)), None))
            case _:
                yield from super().joined(launches)


class AttentionProduct(Fused):
    """Attention and the product that is its only reader, perhaps through views; the product may merge its parts."""

    role = ""

    def joined(self, launches: list[Launches]) -> Steps:
        match launches:
            case [[AttentionWork() as a], [Product() as p]]:
                yield replace(p, attention=a)
            case _:
                yield from super().joined(launches)


class ChainedProducts(Fused):
    """Products, each of which multiplies rows that the one before computes, perhaps after a norm."""

    role = ""

    def joined(self, launches: list[Launches]) -> Steps:
        products = tuple(steps[0] for steps in launches if len(steps) == 1 and isinstance(steps[0], Product))
        if len(products) == len(launches):
            yield ProductChain(products)
        else:
            yield from super().joined(launches)


def repeats(t: Shape, out: Shape) -> bool:
    """Return True if `t` has the last dimensions of `out`, so that broadcasting repeats it."""
    rank = next((len(t) - k for k, n in enumerate(t) if not is_one(n)), 0)
    return rank <= len(out) and t[len(t) - rank :] == out[len(out) - rank :]


def unmoved(p: Product, moves: Sequence[Node]) -> Product | None:
    """Return the product with its matrix as it was before the moves; None if no kernel can read that."""
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
    if p.bias or p.matrix_count:
        return p if p.batch == 1 else None
    m = p.batch * p.m  # one matrix serves all rows, so this is a single product
    return replace(p, batch=1, m=m, y_strides=(m * p.n, p.n, 1))


@dataclass(frozen=True, slots=True)
class _ChainText:
    """An elementwise chain as WGSL statements over the names of its operands, with their functions and numbers."""

    operands: tuple[Tensor, ...]
    body: str
    helpers: str
    scalars: Scalars

    @classmethod
    def of(cls, chain: Sequence[Node], operands: Sequence[Tensor], target: Target) -> _ChainText:
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

    def dispatch(self, out: Tensor, target: Target) -> Dispatch:
        """Return a dispatch that computes only the chain."""
        f32, helpers = DType.F32, self.helpers
        return pointwise(
            "fused", self.body, self.operands, out, target, scalars=self.scalars, compute=f32, helpers=helpers
        )

    def epilogue(self, repeated: tuple[int, ...]) -> BoundEpilogue:
        """Return the epilogue of the product whose result is the first operand."""
        others = self.operands[1:]
        names = ["i: u32", *(f"{n}: f32" for n in (*NAMES[: len(self.operands)], *self.scalars))]
        wgsl = f"{self.helpers}\nfn apply({', '.join(names)}) -> f32 {{ {self.body} }}"
        kernel = Epilogue(wgsl, tuple(t.dtype for t in others), tuple(self.scalars), repeated)
        return BoundEpilogue(kernel, others, self.scalars | {f"e{k}_size": others[k].numel for k in repeated})
