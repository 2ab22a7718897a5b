"""Fuse products that read the same x: for few rows of x, as in decoding, one dispatch computes all of them.

- Siblings, such as the projections to queries, keys and values, become one node with a result for each.
- A pair becomes one node if only the second product uses the result of the first: gate and up of `silu(gate) * up`.
  Both results remain results of the node, but for few rows the first one is never stored.

Siblings move up to the first of them. This is safe, as they read x and constants, which nothing writes; but it extends
the lives of their results, so they move by only a few nodes. The first of a pair moves down to the second, its only
reader.
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
    steady = [n for n in graph.nodes if n.op.role == "product" and uses.steady(n)]
    products = {n: p for n in steady if (p := product(n)) and _is_fixed(p)}
    plain = {n: p for n, p in products.items() if not n.members and all(map(is_constant, flatten(n.args[1:])))}
    pairs = _pairs(uses, plain, {n: p for n, p in products.items() if n.members})
    replace_nodes(graph, {pair[-1]: SiblingProducts(pair).node() for pair in pairs})
    paired = {n for pair in pairs for n in pair}
    groups = _groups(Uses(graph), {n: p for n, p in plain.items() if n not in paired})
    replace_nodes(graph, {g[0]: SiblingProducts(tuple(g)).node() for g in groups if len(g) > 1})


def is_constant(a: Arg) -> bool:
    return isinstance(a, Tensor) and a.kind == "constant"


def _is_fixed(p: Product) -> bool:
    """Return True if it has a packed matrix that never varies."""
    return p.packed is not None and all(map(is_constant, p.matrix))


def _pairs(uses: Uses, plain: dict[Node, Product], finished: dict[Node, Product]) -> list[tuple[Node, Node]]:
    """Return pairs of a plain product and the finished product that is its only reader."""
    pairs = []
    for second, p in finished.items():
        makers = (uses.maker[v] for v in second.values() if v in uses.maker and uses.only_reader(v) is second)
        pairs += [(n, second) for n in makers if n in plain and plain[n].alike(p)][:1]
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
