"""Fold a batch norm, which scales and shifts channels by constants, into the weights of the product before it.

New weights and a new bias, computed in float64, replace the old ones: no extra dispatch, no extra memory. The norm must
be the only reader of the product, and only its first result may be used.
"""

from __future__ import annotations

from dataclasses import replace

from ..graph.graph import Graph, Node
from ..graph.match import Match, Op, rewrite

PRODUCT = Op(lambda node: node.op.rescaled is not None)
PATTERN = Op(lambda node: node.op.by_channel is not None, (PRODUCT,))


def fold_channels(graph: Graph) -> None:
    """Replace products and the norms that read them by products, in place."""
    rewrite(graph, [PATTERN], _folded)


def _folded(match: Match) -> Node | None:
    norm, product = match.nodes
    assert norm.op.by_channel is not None and product.op.rescaled is not None
    if not all(match.uses.stays_within(o, ()) for o in norm.outs[1:]):
        return None
    factors = norm.op.by_channel(norm.op.named(norm.args))
    args = factors and product.op.rescaled(product.op.named(product.args), *factors)
    name = f"{product.name} and {norm.name}"
    return None if args is None else replace(product, args=args, outs=norm.outs[:1], name=name)
