"""Fuse an RMS norm with its only reader, products: for few rows, as in decoding, they compute it themselves.

The products are one node; `siblings` may have fused several. The norm moves down to them, and so does the selection of
its rows from a larger tensor, such as the last row of a prompt. Its result remains a result of the node, but for few
rows it is never stored. If the products cannot absorb the norm, it is computed first, as a separate node would be.
"""

from __future__ import annotations

from ..graph.graph import Arg, Graph, Node
from ..graph.match import Match, Op, rewrite
from ..ops.fused import NormedProduct
from ..ops.nodes import product
from .siblings import is_constant


def _is_weighted(node: Node, x: Arg, weight: Arg, *_: Arg) -> bool:
    return is_constant(weight)


PATTERNS = [Op("product", (Op("norm", args, when=_is_weighted),)) for args in ((Op("row"),), ())]


def fuse_norms(graph: Graph) -> None:
    """Replace norms and the products that read them by fused nodes, in place."""
    rewrite(graph, PATTERNS, _normed)


def _normed(match: Match) -> Node | None:
    last, *before = match.nodes
    p = product(last)
    return NormedProduct((*before[::-1], last)).node() if p and p.packed else None
