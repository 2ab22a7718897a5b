"""What the nodes of a graph compute: their results, formulas and works; and nodes computed one by one, or copied."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import PtegpuError
from ..graph.graph import Arg, Node, Tensor
from ..plan.target import Target
from .pointwise import cast
from .product import Product
from .registry import Dispatch, Formula, Scratch, Step, Steps, Work

Launches = list[Dispatch | Work]


def tensors(node: Node) -> list[Tensor]:
    """Return the results of a node that computes tensors."""
    return [o for o in node.outs if isinstance(o, Tensor)]


def result(node: Node) -> Tensor:
    """Return the only result of a node."""
    (out,) = tensors(node)
    return out


def leaves(chain: Sequence[Node]) -> list[Tensor]:
    """Return the tensors that the chain reads and does not make."""
    made = {o for n in chain for o in n.outs}
    return [v for v in dict.fromkeys(v for n in chain for v in n.values()) if isinstance(v, Tensor) and v not in made]


def formula(node: Node, target: Target) -> Formula | None:
    """Return what the node computes at its live shapes, if that is one elementwise dispatch."""
    steps: list[Dispatch] = []
    for step in node.op.steps_into(node.args, [result(node)], target, whole=True):
        if not isinstance(step, Dispatch):
            return None
        steps.append(step)
    return steps[0].formula if len(steps) == 1 else None


def work(node: Node) -> Work | None:
    """Return what the node computes at its live shapes, if that is one work, maybe with what was fused with it."""
    try:
        steps = node.op.steps_into(node.args, tensors(node), Target(), whole=True)
        only = next(steps, None)
        return only if isinstance(only, Work) and next(steps, None) is None else None
    except (PtegpuError, TypeError, ValueError):
        return None


def product(node: Node) -> Product | None:
    """Return the product that the node computes, if that is all."""
    only = work(node)
    return only if isinstance(only, Product) else None


def launched(node: Node, outs: Sequence[Tensor], target: Target) -> Generator[Step, Any, Launches]:
    """Return what the node launches for its results in `outs`; hand on requests for scratch."""
    steps, launches = node.op.steps_into(node.args, outs, target, whole=True), Launches()
    reply: Tensor | None = None
    try:
        while True:
            step = steps.send(reply)
            reply = None
            if isinstance(step, Dispatch | Work):
                launches.append(step)
            else:
                reply = yield step
    except StopIteration:
        return launches


def apart(members: Sequence[Node], last: Tensor, out: Tensor, target: Target) -> Steps:
    """Compute the members one after the other; their `last` result is `out`."""
    place: dict[Tensor, Tensor] = {last: out}
    for node in members:
        for o in tensors(node):
            if o not in place:
                place[o] = yield Scratch(o.shape, o.dtype)
        args = tuple(replaced(a, place) for a in node.args)
        if node.op.view is None:
            yield from node.op.steps_into(args, [place[o] for o in tensors(node)], target, whole=True)
        else:
            source = args[0]
            assert isinstance(source, Tensor)
            yield cast(source, place[result(node)], target)


def replaced(a: Arg, known: Mapping[Tensor, Tensor]) -> Arg:
    """Return an argument with other tensors."""
    if isinstance(a, tuple):
        return tuple(replaced(x, known) for x in a)
    return known.get(a, a) if isinstance(a, Tensor) else a


def copied(nodes: Sequence[Node], last: Tensor) -> tuple[dict[Node, Node], dict[Tensor, Tensor]]:
    """Return copies of nodes and of their results, except for the last result."""
    known: dict[Tensor, Tensor] = {}
    copies: dict[Node, Node] = {}
    for node in nodes:
        args = tuple(replaced(a, known) for a in node.args)
        known |= {o: o if o is last else replace(o) for o in tensors(node)}
        copies[node] = replace(node, args=args, outs=tuple(known[o] for o in tensors(node)))
    return copies, known
