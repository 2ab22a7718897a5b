"""Products read their matrix where it is, if all that is done to it before is moving it: transposing, repeating.

A matrix that is repeated for each of a batch is one for all of its rows: one product, and no copies.
"""

from __future__ import annotations

from ..graph.graph import Graph, Node
from ..ops.joined import copied, join, product, result, unmoved
from ..ops.walks import is_walk
from .dead import remove_dead
from .siblings import put


def join_operands(graph: Graph) -> None:
    """Replace products and what moves their matrices by joined nodes, in place."""
    makers = {o: n for n in graph.nodes for o in n.outs}
    mutated = {t for n in graph.nodes for t in n.mutates}
    joined: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op.role != "product" or node.members or (made := product(node)) is None or made.window:
            continue
        moves: list[Node] = []
        t = made.b
        while t in makers and is_walk(makers[t]) and len(makers[t].outs) == 1:
            moves.insert(0, makers[t])
            t = moves[0].args[0]  # type: ignore[assignment]
        while moves and (
            mutated & set(moves[0].values()) or _read_otherwise(node, moves) or unmoved(made, moves) is None
        ):
            del moves[0]
        if any(m.op.walks is not None for m in moves):
            joined[node] = join("read", list(copied([*moves, node], result(node))[0].values()))
    if joined:
        put(graph, joined, set())
        remove_dead(graph)


def _read_otherwise(product: Node, moves: list[Node]) -> bool:
    """Return whether the product reads a result of the moves beside the last one as its matrix."""
    operands = list(product.values())
    return any(operands.count(result(move)) > (move is moves[-1]) for move in moves)
