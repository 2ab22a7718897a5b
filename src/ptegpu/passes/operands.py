"""Let products read their matrix in place through operators that only move it, such as transposes and repeats.

A matrix that is repeated for each item of a batch is shared by all rows: one product, and no copies.
"""

from __future__ import annotations

from ..graph.graph import Graph, Node
from ..graph.uses import Uses, replace_nodes
from ..ops.fused import UnmovedProduct, unmoved
from ..ops.nodes import copied, product, result
from ..ops.walks import is_walk
from .dead import remove_dead


def fuse_operands(graph: Graph) -> None:
    """Replace products, and the nodes that move their matrices, by fused nodes, in place."""
    uses, new = Uses(graph), dict[Node, Node]()
    for node in graph.nodes:
        if node.op.role != "product" or node.members or (p := product(node)) is None or p.window:
            continue
        moves: list[Node] = []
        t = p.b
        while (maker := uses.maker.get(t)) is not None and is_walk(maker) and len(maker.outs) == 1:
            moves.insert(0, maker)
            t = maker.args[0]  # type: ignore[assignment]
        while moves and (not uses.steady(moves[0]) or _read_otherwise(node, moves) or unmoved(p, moves) is None):
            del moves[0]
        if any(m.op.walks is not None for m in moves):
            new[node] = UnmovedProduct(tuple(copied([*moves, node], result(node))[0].values())).node()
    if new:
        replace_nodes(graph, new)
        remove_dead(graph)


def _read_otherwise(product: Node, moves: list[Node]) -> bool:
    """Return True if the product reads a result of the moves other than as its matrix."""
    operands = list(product.values())
    return any(operands.count(result(move)) > (move is moves[-1]) for move in moves)
