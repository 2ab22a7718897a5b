"""Put what scales and shifts channels by constants, a batch norm, into the weights of the product before it.

The product's weights and bias are computed anew, in float64, and take the place of the old ones: no dispatch and no
byte more. It must be the only reader of the product, and of its results only the first may be used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..graph.graph import Graph, Node, Tensor, flatten


def fold_channels(graph: Graph) -> None:
    """Replace products and the norms that read them by products, in place."""
    users = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
    kept = Counter([*flatten(tuple(graph.outputs)), *(v for pair in graph.writebacks for v in pair)])
    mutated = {t for n in graph.nodes for t in n.mutates}
    products = {n.outs[0]: n for n in graph.nodes if n.op.rescaled is not None and not mutated & {*n.values(), *n.outs}}
    gone: dict[Node, Node] = {}  # norm → the product with it
    for node in graph.nodes:
        x = node.args[0] if node.args else None
        if node.op.by_channel is None or not isinstance(x, Tensor) or x not in products or mutated & set(node.outs):
            continue
        if users[x] != 1 or kept[x] or any(users[o] or kept[o] for o in node.outs[1:]):
            continue
        product = products[x]
        factors = node.op.by_channel(node.op.named(node.args))
        args = None if factors is None else product.op.rescaled(product.op.named(product.args), *factors)  # type: ignore[misc]
        if args is not None:
            name = f"{product.name} and {node.name}"
            gone[product] = gone[node] = replace(product, args=args, outs=node.outs[:1], name=name)
    graph.nodes = [gone.get(n, n) for n in graph.nodes if n not in gone or n.op.rescaled is None]
