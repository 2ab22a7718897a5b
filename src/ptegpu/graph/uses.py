"""The makers, readers and writers of a graph's values, which passes check before they change a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .graph import Graph, Node, Value, flatten


class Uses:
    """A snapshot of how a graph uses its values. Create another one after a change."""

    def __init__(self, graph: Graph) -> None:
        self.place = {n: k for k, n in enumerate(graph.nodes)}
        self.maker: dict[Value, Node] = {o: n for n in graph.nodes for o in n.outs}
        self.readers: dict[Value, list[Node]] = {}  # in order, without repetition
        for node in graph.nodes:
            for v in dict.fromkeys(node.values()):
                self.readers.setdefault(v, []).append(node)
        self.kept = {*flatten(tuple(graph.outputs)), *(v for pair in graph.writebacks for v in pair)}
        self.mutated = {t for n in graph.nodes for t in n.mutates}

    def stays_within(self, value: Value, nodes: Collection[Node]) -> bool:
        """Return True if only these nodes use the value, and it does not leave the graph."""
        if value in self.kept or value in self.mutated:
            return False
        return all(reader in nodes for reader in self.readers.get(value, ()))

    def only_reader(self, value: Value) -> Node | None:
        """Return the only node that uses the value; None if there is no such node or the value leaves the graph."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and self.stays_within(value, readers) else None

    def steady(self, node: Node) -> bool:
        """Return True if the node may run later: no other node writes its operands in place."""
        return not self.mutated & (set(node.values()) - set(node.mutates))


def replace_nodes(graph: Graph, new: Mapping[Node, Node], gone: Collection[Node] = ()) -> None:
    """Replace nodes by new ones, and remove those in `gone` and the other members of new nodes."""
    removed = {*gone, *(member for node in new.values() for member in node.members)}
    graph.nodes = list(dict.fromkeys(new.get(n, n) for n in graph.nodes if n in new or n not in removed))
