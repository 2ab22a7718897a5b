"""Remove nodes whose results nobody uses."""

from __future__ import annotations

from ..graph.graph import Graph
from ..graph.uses import Uses


def remove_dead(graph: Graph) -> None:
    """Keep what an output, a state or a later node needs; writing a state in place is a use."""
    live = Uses(graph).kept
    kept = []
    for node in reversed(graph.nodes):
        writes = any(t.kind == "state" or t in live for t in node.mutates)
        if writes or any(o in live for o in node.outs):
            kept.append(node)
            live.update(node.values())
    graph.nodes = kept[::-1]
