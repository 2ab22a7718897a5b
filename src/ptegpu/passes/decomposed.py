"""Make attention of what exporters decompose it into: nodes that `ops/decomposed.py` finds become one each.

The linears that make queries, keys and values of the same x become one, too.
"""

from __future__ import annotations

from collections import defaultdict

from ..graph.graph import Graph, Node, Value, flatten
from ..ops.decomposed import Neighbours, find, widened
from .dead import remove_dead
from .siblings import put


def join_decomposed(graph: Graph) -> None:
    """Replace the nodes of attention by one node for all of them, and then linears that only it reads, in place."""
    near, gone, joined = _neighbours(graph), set[Node](), dict[Node, Node]()
    for node in graph.nodes:
        found = find(node, near)
        if found is not None and not gone & set(found[1]):
            joined[near.makers[found[0].outs[0]]] = found[0]
            gone |= set(found[1])
    if not joined:
        return
    put(graph, joined, gone)
    remove_dead(graph)
    near, gone, joined = _neighbours(graph), set(), {}
    for node in graph.nodes:
        wider = widened(node, near)
        if wider is not None:
            joined |= wider[0]
            gone |= wider[1]
    put(graph, joined, gone)


def _neighbours(graph: Graph) -> Neighbours:
    users: dict[Value, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for v in dict.fromkeys(node.values()):
            users[v].append(node)
    makers = {o: n for n in graph.nodes for o in n.outs}
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    return Neighbours(makers, users, kept, {t for n in graph.nodes for t in n.mutates})
