"""Fuse products whose rows are results of products, so that matrix units leave a few rows as blocks for the next one.

In a decoder, these are the output of attention, gate and up, down, and the next layer's queries, keys and values. All
results remain results of the node. At sizes that this does not help, the products are computed one by one.
"""

from __future__ import annotations

from itertools import pairwise

from ..graph.graph import Graph, Node
from ..graph.uses import replace_nodes
from ..ops.fused import AttentionProduct, ChainedProducts
from ..ops.nodes import product
from ..ops.product import Product
from ..ops.tensor_core_products import result_of, rows_of


def chain_products(graph: Graph) -> None:
    """Replace neighbouring products by fused nodes, in place."""
    chains: list[list[Node]] = [[]]
    products = {n: p for n in graph.nodes if (p := _product(n))}
    for first, second in pairwise(graph.nodes):
        q = result_of(products[first]) if first in products and second in products else None
        if q is not None and rows_of(products[second]) is q.y:
            if not chains[-1] or chains[-1][-1] is not first:
                chains.append([first])
            chains[-1].append(second)
    replace_nodes(graph, {chain[-1]: ChainedProducts(tuple(chain)).node() for chain in chains if chain})


def _product(node: Node) -> Product | None:
    """Return the product with packed weights that a node computes, perhaps after attention."""
    last = node.members[-1] if isinstance(node.op.steps, AttentionProduct) else node
    p = product(last) if last.op.steps else None
    return p if p and p.packed else None
