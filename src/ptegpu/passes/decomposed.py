"""Restore attention that exporters decomposed: the nodes that match `ops/decomposed.py` become one node.

The linears that make queries, keys and values of the same x are merged into one as well.
"""

from __future__ import annotations

from ..graph.graph import Graph, Node
from ..graph.uses import Uses, replace_nodes
from ..ops.decomposed import attention
from ..ops.widened import widened
from .dead import remove_dead


def fuse_decomposed(graph: Graph) -> None:
    """Replace the nodes of each attention by one node, then merge the linears that only it reads, in place."""
    uses, new, gone = Uses(graph), dict[Node, Node](), set[Node]()
    for node in graph.nodes:
        match = attention(node, uses)
        if match is not None and gone.isdisjoint(match[1]):
            fused, needless = match
            new[uses.maker[fused.outs[0]]] = fused
            gone |= needless
    if new:
        replace_nodes(graph, new, gone)
        remove_dead(graph)
        uses = Uses(graph)
        replace_nodes(graph, {old: n for node in graph.nodes for old, n in (widened(node, uses) or {}).items()})
