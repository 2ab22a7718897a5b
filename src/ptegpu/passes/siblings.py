"""Join products that read the same x: for few rows of x, as in decoding, one dispatch computes all of them.

- Siblings, such as the projections to queries, keys and values, become one node with a result for each.
- A pair becomes one node too, where the second one computes with the first one's result, and nobody else does: gate and
  up of `silu(gate) * up`. Both results stay results of the node, but for few rows the first one is never stored.

The rule of a joined node runs the rules of its members. Where each is one dispatch for few rows, they become as few
dispatches as the adapter allows; otherwise they are launched as they are. So it is right at every live size, and for
weights in parts.

Siblings move up to the first of them. They read x and constants, which nobody writes, so they may; but their results
take memory for longer, so it is by a few nodes only. The first of a pair moves down to the second, its only user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeGuard

from ..graph.graph import Arg, Graph, Node, Tensor, flatten
from ..ops.linear_q4 import Few, abreast, paired
from ..ops.registry import Dispatch, Out, Step, Steps
from ..plan.target import Target

MAX_SIBLINGS = 4
MAX_DISTANCE = 16  # nodes from the first sibling on

Launches: TypeAlias = list[list[Dispatch]]  # of each member


def join_siblings(graph: Graph) -> None:
    """Replace products of the same x by joined nodes, in place."""
    mutated = {t for n in graph.nodes for t in n.mutates}
    alone = [n for n in graph.nodes if n.op.abreast and len(n.outs) == 1]
    products = [n for n in alone if _kind(n) and not mutated & set(n.values())]
    plain = [n for n in products if "finish" in n.op.wants and all(map(is_constant, flatten(n.args[1:])))]
    gone = _join_pairs(graph, plain, [n for n in products if "finish" not in n.op.wants])
    _join_abreast(graph, [n for n in plain if n not in gone])


def is_constant(a: Arg) -> TypeGuard[Tensor]:
    return isinstance(a, Tensor) and a.kind == "constant"


def _kind(node: Node) -> list[object]:
    """Types of the weight and the scales, length of a row, and numbers that belong to them; nothing if they vary."""
    if len(node.args) < 3 or not is_constant(weight := node.args[1]) or not is_constant(scales := node.args[2]):
        return []
    return [
        weight.dtype,
        weight.max_shape[1:],
        scales.dtype,
        *(a for a in node.args if not isinstance(a, Tensor | None)),
    ]


def _alike(a: Node, b: Node) -> bool:
    """Whether they read the same x, and weights of the same kind."""
    return a.args[0] is b.args[0] and _kind(a) == _kind(b)


def _join_pairs(graph: Graph, plain: list[Node], finished: list[Node]) -> set[Node]:
    """Returns the nodes that went into pairs."""
    users = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    makers = {n.outs[0]: n for n in plain if n.outs[0] not in kept and users[n.outs[0]] == 1}
    joined: dict[Node, Node] = {}
    gone: set[Node] = set()
    for second in finished:
        first = next((makers[v] for v in second.values() if v in makers and _alike(makers[v], second)), None)
        if first is not None:
            joined[second] = as_one([first, second], _together)
            gone |= {first, second}
    put(graph, joined, gone)
    return gone


def _join_abreast(graph: Graph, plain: list[Node]) -> None:
    place = {n: k for k, n in enumerate(graph.nodes)}
    groups: list[list[Node]] = []
    for node in plain:
        for group in groups:
            near = place[node] - place[group[0]] <= MAX_DISTANCE
            if near and len(group) < MAX_SIBLINGS and _alike(group[0], node):
                group.append(node)
                break
        else:
            groups.append([node])
    groups = [g for g in groups if len(g) > 1]
    put(graph, {g[0]: as_one(g, _side_by_side) for g in groups}, {n for g in groups for n in g})


def put(graph: Graph, joined: dict[Node, Node], gone: set[Node]) -> None:
    """Joined nodes take the places that they are given for; what else went into them is gone."""
    graph.nodes = [joined.get(n, n) for n in graph.nodes if n in joined or n not in gone]


def as_one(members: Sequence[Node], join: Callable[[Launches, Target], list[Dispatch]]) -> Node:
    """One node that computes all members, with `join` for what they launch."""
    results = [o for n in members for o in n.outs]
    inner = {o for o in results if any(o in n.values() for n in members)}

    def rule(*_: Arg, target: Target, outs: tuple[Tensor, ...]) -> Steps:
        left = iter(outs)
        own = [[next(left) for _ in node.outs] for node in members]
        for node, made in zip(members, own, strict=True):
            for out, shape in zip(made, node.op.infer(node.args, made), strict=True):
                if out in inner:  # nobody else's
                    out.shape = shape
                yield Out(shape)
        launches = []
        for node, made in zip(members, own, strict=True):
            launches.append((yield from _launches(node, made, target)))
        yield from join(launches, target)

    given = [
        (argument, parameter, k in node.op.splits)
        for node in members
        for k, (argument, parameter) in enumerate(zip(node.args, node.op.parameters, strict=False))
        if not (isinstance(argument, Tensor) and argument in inner)
    ]
    op = replace(
        members[0].op,
        name=f"fused({'+'.join(map(_short, members))})",
        parameters=tuple(parameter for _, parameter, _ in given),
        wants=frozenset({"target", "outs"}),
        steps=rule,
        splits=tuple(k for k, (_, _, splits) in enumerate(given) if splits),
        prologue=False,
    )
    return Node(op, tuple(argument for argument, _, _ in given), tuple(results), ", ".join(n.name for n in members))


def _short(node: Node) -> str:
    name = node.op.name
    return name.removeprefix("fused(").removesuffix(")") if name.startswith("fused(") else name.split(".")[-2]


def _launches(node: Node, outs: Sequence[Tensor], target: Target) -> Generator[Step, Any, list[Dispatch]]:
    """What the node launches for its results in `outs`, all labelled; scratch is asked for, nothing launched."""
    steps = node.op.steps_into(node.args, outs, target)
    found: list[Dispatch] = []
    reply: Tensor | None = None
    try:
        while True:
            step = steps.send(reply)
            reply = None
            if isinstance(step, Dispatch):
                found.append(replace(step, label=step.label or node.name))
            else:
                reply = yield step
    except StopIteration:
        return found


def _side_by_side(launches: Launches, target: Target) -> list[Dispatch]:
    alone = [d for ds in launches for d in ds if len(ds) > 1 or not isinstance(d, Few)]
    return [*abreast([d for ds in launches for d in ds if len(ds) == 1 and isinstance(d, Few)], target), *alone]


def _together(launches: Launches, target: Target) -> list[Dispatch]:
    match launches:
        case [[Few() as first], [Few() as second]]:
            both = paired(first, second, target)
            if both is not None:
                return [both]
    return [d for ds in launches for d in ds]
