"""Put what scales and shifts channels by constants, a batch norm, into the weights of the product before it.

The product's weights and bias are computed anew, in float64, and take the place of the old ones: no dispatch and no
byte more. It must be the only reader of the product, and of its results only the first may be used.
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
