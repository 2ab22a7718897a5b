"""Fuse products that read the same x: for few rows of x, as in decoding, one dispatch computes all of them.

- Siblings, such as the projections to queries, keys and values, become one node with a result for each.
- A pair becomes one node too, where the second one computes with the first one's result, and nobody else does: gate and
  up of `silu(gate) * up`. Both results stay results of the node, but for few rows the first one is never stored.

Siblings move up to the first of them. They read x and constants, which nobody writes, so they may; but their results
take memory for longer, so it is by a few nodes only. The first of a pair moves down to the second, its only user.
"""

from __future__ import annotations

from ..graph.graph import Arg, Graph, Node, Tensor, flatten
from ..graph.uses import Uses, replace_nodes
from ..ops.fused import SiblingProducts
from ..ops.nodes import product
from ..ops.product import Product

MAX_SIBLINGS = 4
MAX_DISTANCE = 16  # nodes from the first sibling on


def fuse_siblings(graph: Graph) -> None:
    """Replace products of the same x by fused nodes, in place."""
    uses = Uses(graph)
    products = {n: p for n in graph.nodes if n.op.role == "product" and (p := product(n)) and _is_fixed(p)}
    products = {n: p for n, p in products.items() if uses.steady(n)}
    plain = {n: p for n, p in products.items() if not n.members and all(map(is_constant, flatten(n.args[1:])))}
    pairs = _pairs(uses, plain, {n: p for n, p in products.items() if n.members})
    _fuse(graph, {second: [first, second] for second, first in pairs.items()})
    paired = {n for pair in pairs.items() for n in pair}
    groups = _groups(Uses(graph), {n: p for n, p in plain.items() if n not in paired})
    _fuse(graph, {g[0]: g for g in groups if len(g) > 1})


def is_constant(a: Arg) -> bool:
    return isinstance(a, Tensor) and a.kind == "constant"


def _is_fixed(p: Product) -> bool:
    """Return True if it has a packed matrix that never varies."""
    return p.packed is not None and all(map(is_constant, p.matrix))


def _pairs(uses: Uses, plain: dict[Node, Product], finished: dict[Node, Product]) -> dict[Node, Node]:
    """Return the plain product, if any, that each finished one alone reads."""
    pairs = {}
    for second, p in finished.items():
        makers = (uses.maker[v] for v in second.values() if v in uses.maker and uses.only_reader(v) is second)
        first = next((n for n in makers if n in plain and plain[n].alike(p)), None)
        if first is not None:
            pairs[second] = first
    return pairs


def _groups(uses: Uses, plain: dict[Node, Product]) -> list[list[Node]]:
    """Return products of the same x that are near each other."""
    groups: list[list[Node]] = []
    for node, p in plain.items():
        for group in groups:
            near = uses.place[node] - uses.place[group[0]] <= MAX_DISTANCE
            if near and len(group) < MAX_SIBLINGS and plain[group[0]].alike(p):
                group.append(node)
                break
        else:
            groups.append([node])
    return groups


def _fuse(graph: Graph, groups: dict[Node, list[Node]]) -> None:
    """Put a fused node of each group in the place that it is listed for."""
    new = {place: SiblingProducts(tuple(group)).node() for place, group in groups.items()}
    replace_nodes(graph, new, {n for group in groups.values() for n in group})
