"""Join products that read the same x: for few rows of x, as in decoding, one dispatch computes all of them.

- Siblings, such as the projections to queries, keys and values, become one node with a result for each.
- A pair becomes one node too, where the second one computes with the first one's result, and nobody else does: gate and
  up of `silu(gate) * up`. Both results stay results of the node, but for few rows the first one is never stored.

Siblings move up to the first of them. They read x and constants, which nobody writes, so they may; but their results
take memory for longer, so it is by a few nodes only. The first of a pair moves down to the second, its only user.
"""

from __future__ import annotations

from collections import Counter

from ..graph.graph import Arg, Graph, Node, Tensor, flatten
from ..ops.joined import join, product
from ..ops.product import Product

MAX_SIBLINGS = 4
MAX_DISTANCE = 16  # nodes from the first sibling on


def join_siblings(graph: Graph) -> None:
    """Replace products of the same x by joined nodes, in place."""
    mutated = {t for n in graph.nodes for t in n.mutates}
    found = {n: p for n in graph.nodes if n.op.role == "product" and (p := product(n)) and _is_fixed(p)}
    products = {n: p for n, p in found.items() if not mutated & set(n.values())}
    plain = {n: p for n, p in products.items() if not n.members and all(map(is_constant, flatten(n.args[1:])))}
    gone = _join_pairs(graph, plain, {n: p for n, p in products.items() if n.members})
    _join_abreast(graph, {n: p for n, p in plain.items() if n not in gone})


def is_constant(a: Arg) -> bool:
    return isinstance(a, Tensor) and a.kind == "constant"


def _is_fixed(p: Product) -> bool:
    """Whether it has a packed matrix that never varies."""
    return p.packed is not None and all(map(is_constant, p.matrix))


def _join_pairs(graph: Graph, plain: dict[Node, Product], finished: dict[Node, Product]) -> set[Node]:
    """Returns the nodes that went into pairs."""
    users = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    makers = {n.outs[0]: n for n in plain if n.outs[0] not in kept and users[n.outs[0]] == 1}
    joined: dict[Node, Node] = {}
    gone: set[Node] = set()
    for second, p in finished.items():
        first = next((makers[v] for v in second.values() if v in makers and plain[makers[v]].alike(p)), None)
        if first is not None:
            joined[second] = join("siblings", [first, second])
            gone |= {first, second}
    put(graph, joined, gone)
    return gone


def _join_abreast(graph: Graph, plain: dict[Node, Product]) -> None:
    place = {n: k for k, n in enumerate(graph.nodes)}
    groups: list[list[Node]] = []
    for node, p in plain.items():
        for group in groups:
            near = place[node] - place[group[0]] <= MAX_DISTANCE
            if near and len(group) < MAX_SIBLINGS and plain[group[0]].alike(p):
                group.append(node)
                break
        else:
            groups.append([node])
    groups = [g for g in groups if len(g) > 1]
    put(graph, {g[0]: join("siblings", g) for g in groups}, {n for g in groups for n in g})


def put(graph: Graph, joined: dict[Node, Node], gone: set[Node]) -> None:
    """Joined nodes take the places that they are given for; what else went into them is gone."""
    graph.nodes = [joined.get(n, n) for n in graph.nodes if n in joined or n not in gone]
