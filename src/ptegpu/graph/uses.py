"""Who makes, reads, keeps and writes each value of a graph: what passes ask before they change one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .graph import Graph, Node, Value, flatten


class Uses:
    """The uses of a graph's values. It is a snapshot: make another one after a change."""

    def __init__(self, graph: Graph) -> None:
        self.place = {n: k for k, n in enumerate(graph.nodes)}
        self.maker: dict[Value, Node] = {o: n for n in graph.nodes for o in n.outs}
        self.readers: dict[Value, list[Node]] = {}  # each once, in order
        for node in graph.nodes:
            for v in dict.fromkeys(node.values()):
                self.readers.setdefault(v, []).append(node)
        self.kept = {*flatten(tuple(graph.outputs)), *(v for pair in graph.writebacks for v in pair)}
        self.mutated = {t for n in graph.nodes for t in n.mutates}

    def stays_within(self, value: Value, nodes: Collection[Node]) -> bool:
        """Return True if no node but these uses the value, and nobody outside the graph does."""
        if value in self.kept or value in self.mutated:
            return False
        return all(reader in nodes for reader in self.readers.get(value, ()))

    def only_reader(self, value: Value) -> Node | None:
        """Return the node that alone uses the value; None if there are more, or none, or the value is kept."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and self.stays_within(value, readers) else None

    def steady(self, node: Node) -> bool:
        """Return True if the node may run later: nothing that it reads is written in place, except by itself."""
        return not self.mutated & (set(node.values()) - set(node.mutates))


def replace_nodes(graph: Graph, new: Mapping[Node, Node], gone: Collection[Node] = ()) -> None:
    """Put new nodes in place of others, each once. Other members of new nodes leave, and so do those that are gone."""
    leaving = {*gone, *(member for node in new.values() for member in node.members)}
    graph.nodes = list(dict.fromkeys(new.get(n, n) for n in graph.nodes if n in new or n not in leaving))
