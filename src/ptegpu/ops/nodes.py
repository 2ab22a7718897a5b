"""Questions about the nodes of a graph (results, formulas, works), and nodes computed one by one or copied."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import PtegpuError
from ..graph.graph import Arg, Node, Tensor, Value
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
    """Return the tensors that the chain reads but does not compute."""
    results = {o for n in chain for o in n.outs}
    operands = dict.fromkeys(v for n in chain for v in n.values())
    return [v for v in operands if isinstance(v, Tensor) and v not in results]


def formula(node: Node, target: Target) -> Formula | None:
    """Return the node's formula at its live shapes; None unless it is one elementwise dispatch."""
    steps: list[Dispatch] = []
    for step in node.op.steps_into(node.args, [result(node)], target, whole=True):
        if not isinstance(step, Dispatch):
            return None
        steps.append(step)
    return steps[0].formula if len(steps) == 1 else None


def work(node: Node) -> Work | None:
    """Return the node's work at its live shapes, with whatever was fused into it; None unless it is exactly one."""
    try:
        steps = node.op.steps_into(node.args, tensors(node), Target(), whole=True)
        only = next(steps, None)
        return only if isinstance(only, Work) and next(steps, None) is None else None
    except (PtegpuError, TypeError, ValueError):
        return None


def product(node: Node) -> Product | None:
    """Return the node's product; None if it computes anything else."""
    only = work(node)
    return only if isinstance(only, Product) else None


def launched(node: Node, outs: Sequence[Tensor], target: Target) -> Generator[Step, Any, Launches]:
    """Return what the node launches to compute its results in `outs`; forward its requests for scratch."""
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
    """Compute the members one after the other, with scratch for all results but the `last`, which is `out`."""
    storage: dict[Tensor, Tensor] = {last: out}
    for node in members:
        for o in tensors(node):
            if o not in storage:
                storage[o] = yield Scratch(o.shape, o.dtype)
        args = tuple(replaced(a, storage) for a in node.args)
        if node.op.view is None:
            yield from node.op.steps_into(args, [storage[o] for o in tensors(node)], target, whole=True)
        else:
            source = args[0]
            assert isinstance(source, Tensor)
            yield cast(source, storage[result(node)], target)


def replaced(a: Arg, replacements: Mapping[Any, Arg]) -> Arg:
    """Return an argument with tensors and symbolic ints replaced."""
    if isinstance(a, tuple):
        return tuple(replaced(x, replacements) for x in a)
    return replacements.get(a, a) if isinstance(a, Value) else a


def copied(nodes: Sequence[Node], last: Tensor) -> tuple[dict[Node, Node], dict[Tensor, Tensor]]:
    """Return copies of nodes and of their results, except for the last result."""
    results: dict[Tensor, Tensor] = {}
    copies: dict[Node, Node] = {}
    for node in nodes:
        args = tuple(replaced(a, results) for a in node.args)
        results |= {o: o if o is last else replace(o) for o in tensors(node)}
        copies[node] = replace(node, args=args, outs=tuple(results[o] for o in tensors(node)))
    return copies, results
