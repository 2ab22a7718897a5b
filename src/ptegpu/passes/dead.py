"""Remove nodes whose results are unused."""

from __future__ import annotations

from ..graph.graph import Graph
from ..graph.uses import Uses


def remove_dead(graph: Graph) -> None:
    """Remove nodes, in place, that no output, state or later node needs; writing a state in place is a use."""
    live = Uses(graph).kept
    needed = []
    for node in reversed(graph.nodes):
        writes = any(t.kind == "state" or t in live for t in node.mutates)
        if writes or any(o in live for o in node.outs):
            needed.append(node)
            live.update(node.values())
    graph.nodes = needed[::-1]
