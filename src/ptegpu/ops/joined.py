"""Nodes that were made of several, which they have as data: `Joined` is their rule, and passes choose its members.

- A chain of elementwise operators is one kernel that computes their formulas one after the other, in f32.
- A product with a chain behind it, maybe of a view of its result, computes the chain before it stores.
- A product whose matrix is only moved first reads it where it is.
- Products of the same rows are siblings, and a norm before them is theirs: `Product` says what comes of that.
- Attention takes in the rotary embedding and the cache writes before it (`Attention`), and a product the attention
  whose result it reads.

The rule runs the rules of its members, so it is right at every live size: members that cannot be computed together are
computed one after the other.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..dtypes import DType
from ..errors import PtegpuError
from ..graph.graph import Arg, Node, Shape, Tensor
from ..kernels.matmul import Finish
from ..plan.target import Target
from .attention_record import Attention, Rotary, Written
from .moves import Row
from .norm import Norm
from .pointwise import NAMES, cast, pointwise
from .product import Finishing, Product
from .registry import Dispatch, Formula, Out, Parameter, Role, Scratch, Step, Steps, Work, is_one
from .walks import Walk, start, strides_of, through

Kind = Literal["chain", "finish", "read", "siblings", "norm", "attention", "merged"]
Launches = list[Dispatch | Work]
Scalars = dict[str, int | float]


@dataclass(frozen=True, eq=False, slots=True)
class Joined:
    """The rule of a joined node."""

    kind: Kind
    members: tuple[Node, ...]
    results: tuple[Tensor, ...]  # of the members, those that are the node's too

    def __call__(self, *_: Arg, target: Target, outs: tuple[Tensor, ...]) -> Steps:
        place = dict(zip(self.results, outs, strict=True))
        inner = {o for n in self.members for o in n.outs if any(o in m.values() for m in self.members)}
        own = [[place.get(o, o) for o in tensors(n)] for n in self.members]
        for node, made in zip(self.members, own, strict=True):
            for o, out, shape in zip(tensors(node), made, node.op.infer(node.args, made), strict=True):
                if o in inner:  # nobody else's
                    out.shape = shape
                if o in place:
                    yield Out(shape)
        match self.kind:
            case "chain":
                operands = leaves(self.members)
                yield _pointwise(*_text(self.members, operands, target), operands, own[-1][0], target)
            case "finish":
                yield from _finished(self.members, own[-1][0], target)
            case "read":
                yield from _read(self.members, own[-1][0], target)
            case kind:
                launches: list[Launches] = []
                for node, made in zip(self.members, own, strict=True):
                    if node.op.view is not None:  # what it stands for is made there
                        launches[-1] = [replace(w, y=made[0]) for w in launches[-1]]  # type: ignore[type-var]
                    else:
                        launches.append((yield from _launches(node, made, target)))
                yield from TOGETHER[kind](launches)


def join(kind: Kind, members: Sequence[Node]) -> Node:
    """One node that computes all members. Results that are only handed from one to the next are no results of a chain,
    nor of a product that is finished or reads through others."""
    first, last = members[0], members[-1]
    after = kind in ("chain", "finish", "read")
    viewed = {n.args[0] for n in members if n.op.view is not None}  # what these stand for
    results = tuple(o for n in ([last] if after else members) for o in tensors(n) if o not in viewed)
    made = {o for n in members for o in n.outs if after or any(o in m.values() for m in members)}
    whole = {"chain": members[:0], "finish": members[:1]}.get(kind, members)  # those whose arguments all count
    given = [
        (a, parameter, k in n.op.splits)
        for n in whole
        for k, (a, parameter) in enumerate(zip(n.args, n.op.parameters, strict=False))
        if not (isinstance(a, Tensor) and a in made)
    ]
    others = dict.fromkeys(v for n in members[len(whole) :] for v in n.values() if v not in made)
    given += [(v, Parameter(f"x{k}"), False) for k, v in enumerate(others)]
    op = replace(
        last.op if kind in ("chain", "read") else first.op,
        name=f"fused({'+'.join(map(_short, members))})",
        parameters=tuple(parameter for _, parameter, _ in given),
        wants=frozenset({"target", "outs"}),
        steps=Joined(kind, tuple(members), results),
        splits=tuple(k for k, (_, _, splits) in enumerate(given) if splits),
        indexes=lambda _: [b for n in members for b in n.op.bounds(n.args)],
        moves=False,
        fits=None,
        role=ROLES.get(kind, "product"),
    )
    before, behind = f"{last.name} and {len(members) - 1} before it", f"{first.name} and {len(members) - 1} after it"
    name = {"chain": before, "read": before, "finish": behind}.get(kind) or ", ".join(n.name for n in members)
    return Node(op, tuple(a for a, _, _ in given), results, name, tuple(t for n in members for t in n.mutates))


def _short(node: Node) -> str:
    name = node.op.name
    return name.removeprefix("fused(").removesuffix(")") if node.members else name.split(".")[-2]


def tensors(node: Node) -> list[Tensor]:
    """The results of a node that computes tensors."""
    return [o for o in node.outs if isinstance(o, Tensor)]


def result(node: Node) -> Tensor:
    """The only one of a node."""
    (out,) = tensors(node)
    return out


def leaves(chain: Sequence[Node]) -> list[Tensor]:
    """Tensors that the chain reads and does not make."""
    made = {o for n in chain for o in n.outs}
    found = dict.fromkeys(v for n in chain for v in n.values() if v not in made)
    return [v for v in found if isinstance(v, Tensor)]


def formula(node: Node, target: Target) -> Formula | None:
    """What the node computes at its live shapes, if that is one elementwise dispatch."""
    found: list[Dispatch] = []
    for step in node.op.steps_into(node.args, [result(node)], target, whole=True):
        if not isinstance(step, Dispatch):
            return None
        found.append(step)
    return found[0].formula if len(found) == 1 else None


def work(node: Node) -> Work | None:
    """What the node computes at its live shapes, if that is one work, maybe with what was joined to it."""
    try:
        steps = node.op.steps_into(node.args, tensors(node), Target(), whole=True)
        only = next(steps, None)
        return only if isinstance(only, Work) and next(steps, None) is None else None
    except (PtegpuError, TypeError, ValueError):
        return None


def product(node: Node) -> Product | None:
    """The same, if it is a product."""
    only = work(node)
    return only if isinstance(only, Product) else None


def _pointwise(
    text: str, helpers: str, scalars: Scalars, operands: Sequence[Tensor], out: Tensor, target: Target
) -> Dispatch:
    return pointwise("fused", text, operands, out, target, scalars=scalars, compute=DType.F32, helpers=helpers)


def repeats(t: Shape, whole: Shape) -> bool:
    """Whether a tensor has the last dimensions of another, so that it is as if it began there again and again."""
    rank = next((len(t) - k for k, n in enumerate(t) if not is_one(n)), 0)
    return rank <= len(whole) and t[len(t) - rank :] == whole[len(whole) - rank :]


def _finished(members: Sequence[Node], out: Tensor, target: Target) -> Steps:
    """The product, perhaps seen through a view, and with each of its elements, the chain."""
    product, *chain = members
    made = result(product)
    if chain[0].op.view is not None:
        made, chain = result(chain[0]), chain[1:]
    others = [t for t in leaves(chain) if t is not made]
    repeated = tuple(k for k, t in enumerate(others) if t.max_shape != result(chain[-1]).max_shape)
    text, helpers, scalars = _text(chain, [made, *others], target)
    same = made.shape == out.shape and all(
        repeats(t.shape, out.shape) if k in repeated else t.shape == out.shape for k, t in enumerate(others)
    )
    if not same:  # sizes of one that a dynamic dimension has only now
        plain = yield Scratch(made.shape, made.dtype)
        yield from product.op.steps_into(product.args, [plain], target, whole=True)
        yield _pointwise(text, helpers, scalars, [plain, *others], out, target)
        return
    names = ["i: u32", *(f"{n}: f32" for n in (*NAMES[: 1 + len(others)], *scalars))]
    wgsl = f"{helpers}\nfn apply({', '.join(names)}) -> f32 {{ {text} }}"
    kernel = Finish(wgsl, tuple(t.dtype for t in others), tuple(scalars), repeated)
    finish = Finishing(kernel, tuple(others), scalars | {f"e{k}_size": others[k].numel for k in repeated})
    for step in (yield from _collected(product.op.steps_into(product.args, [out], target, whole=True))):
        yield replace(step, finish=finish) if isinstance(step, Product) else step


def _read(members: Sequence[Node], out: Tensor, target: Target) -> Steps:
    """The product, with its matrix where that was before the other members moved it."""
    *moves, node = members
    match (yield from _collected(node.op.steps_into(node.args, [out], target, whole=True))):
        case [Product() as p] if (found := unmoved(p, moves)) is not None:
            yield found
        case _:
            yield from apart(members, result(node), out, target)


def unmoved(p: Product, moves: Sequence[Node]) -> Product | None:
    """The product, with its matrix where that was before the moves; None if no kernel can read that."""
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


def apart(members: Sequence[Node], last: Tensor, out: Tensor, target: Target) -> Steps:
    """The members one after the other; their `last` result is `out`."""
    made: dict[Tensor, Tensor] = {last: out}
    for node in members:
        for o in tensors(node):
            if o not in made:
                made[o] = yield Scratch(o.shape, o.dtype)
        args = tuple(replaced(a, made) for a in node.args)
        if node.op.view is None:
            yield from node.op.steps_into(args, [made[o] for o in tensors(node)], target, whole=True)
        else:
            source = args[0]
            assert isinstance(source, Tensor)
            yield cast(source, made[result(node)], target)


def replaced(a: Arg, known: Mapping[Tensor, Tensor]) -> Arg:
    """An argument with other tensors."""
    if isinstance(a, tuple):
        return tuple(replaced(x, known) for x in a)
    return known.get(a, a) if isinstance(a, Tensor) else a


def copied(nodes: Sequence[Node], last: Tensor) -> tuple[dict[Node, Node], dict[Tensor, Tensor]]:
    """Nodes with results of their own, but for the last one; and which these are."""
    known: dict[Tensor, Tensor] = {}
    copies: dict[Node, Node] = {}
    for node in nodes:
        args = tuple(replaced(a, known) for a in node.args)
        known |= {o: o if o is last else replace(o) for o in tensors(node)}
        copies[node] = replace(node, args=args, outs=tuple(known[o] for o in tensors(node)))
    return copies, known


def _collected(steps: Steps) -> Generator[Step, Any, Launches]:
    """What the steps launch; scratch is asked for."""
    found: Launches = []
    reply: Tensor | None = None
    try:
        while True:
            step = steps.send(reply)
            reply = None
            if isinstance(step, Dispatch | Work):
                found.append(step)
            else:
                reply = yield step
    except StopIteration:
        return found


def _launches(node: Node, outs: Sequence[Tensor], target: Target) -> Generator[Step, Any, Launches]:
    """What the node launches for its results in `outs`, all labelled."""
    found = yield from _collected(node.op.steps_into(node.args, outs, target, whole=True))
    return [replace(s, label=s.label or node.name) for s in found]  # type: ignore[type-var]


def _siblings(launches: list[Launches]) -> Steps:
    """Products that are all of their node are computed together, the others after them."""
    products, others = [], []
    for found in launches:
        match found:
            case [Product() as p]:
                products.append(p)
            case _:
                others += found
    if products:
        yield replace(products[0], siblings=tuple(products[1:]))
    yield from others


def _normed(launches: list[Launches]) -> Steps:
    """A product takes the norm in, if it is all there is."""
    match launches:
        case [[Row() as row], *rest] if row.first is None:
            yield row
            yield from _normed(rest)
        case [[Row() as row], [Norm() as norm], [Product() as p]]:
            yield replace(p, norm=replace(norm, row=row))
        case [[Norm() as norm], [Product() as p]]:
            yield replace(p, norm=norm)
        case _:
            yield from (d for found in launches for d in found)


def _attended(launches: list[Launches]) -> Steps:
    """Attention takes in all that is before it."""
    match [d for found in launches for d in found]:
        case [*before, Attention() as a] if all(isinstance(w, Rotary | Written) for w in before):
            writes = {w.caches[0]: w.values[0] for w in before if isinstance(w, Written)}
            new = (writes[a.k], writes[a.v]) if writes else a.new
            yield replace(a, new=new, rotary=next((w for w in before if isinstance(w, Rotary)), None))
        case found:
            yield from found


def _merged(launches: list[Launches]) -> Steps:
    """A product takes in the attention whose result it reads."""
    match launches:
        case [[Attention() as a], [Product() as p]]:
            yield replace(p, attention=a)
        case _:
            yield from (d for found in launches for d in found)


TOGETHER = {"siblings": _siblings, "norm": _normed, "attention": _attended, "merged": _merged}
ROLES: dict[Kind, Role] = {"chain": "", "attention": "attention", "merged": ""}  # of joined nodes, if no products


def _text(chain: Sequence[Node], operands: Sequence[Tensor], target: Target) -> tuple[str, str, Scalars]:
    """The chain as statements over the letters of its operands, the functions that they call, and their numbers."""
    values: dict[Tensor, str] = dict(zip(operands, NAMES, strict=False))
    scalars: Scalars = {}
    helpers, body = [], []
    for k, node in enumerate(chain):
        found = formula(node, target)
        assert found is not None
        parameters, given = ["i: u32"], ["i"]
        for letter, operand in zip(NAMES, found.operands, strict=False):
            parameters.append(f"{letter}: f32")
            if isinstance(operand, Tensor):
                given.append(values[operand])
            else:
                scalars[f"n{k}{letter}"] = operand
                given.append(f"n{k}{letter}")
        for name, number in found.scalars.items():
            parameters.append(f"{name}: f32")
            scalars[f"n{k}{name}"] = number
            given.append(f"n{k}{name}")
        statements = found.body if "return" in found.body else f"return {found.body};"
        helpers.append(f"fn step{k}({', '.join(parameters)}) -> f32 {{ {statements} }}")
        body.append(f"let t{k} = step{k}({', '.join(given)});")
        values[result(node)] = f"t{k}"
    return " ".join([*body, f"return t{len(chain) - 1};"]), "\n".join(helpers), scalars
