"""Fuse chains of elementwise operators into one kernel each: `silu(gate) * up` reads twice and writes once.

A node joins the only node that uses its result. The fused node reads the operands of both, broadcast to its own
shape, and computes their formulas one after the other, in f32. Its shape rule runs theirs, so it is correct at every
live size. Only float arithmetic is fused: wider intermediate results only make it more accurate.

If its operands have the chain's shape, or its last dimensions, the chain also joins a product that makes one of them
(the last one, if there are several): the product's kernels compute it before they store. So `x + linear(y)` is one
dispatch.
"""

from __future__ import annotations

from ..dtypes import FLOATS
from ..errors import PtegpuError
from ..graph.graph import Graph, Node, Tensor, Value
from ..graph.uses import Uses, replace_nodes
from ..ops.fused import Chain, FinishedProduct, repeats
from ..ops.nodes import formula, leaves, result
from ..plan.target import Target

MAX_OPERANDS = 6  # of a fused node: with its result, fewer than a browser's 8 storage buffers
MAX_FINISH_OPERANDS = 2  # besides a product's result: its kernels read up to four tensors, and write one
MAX_NODES = 12


def fuse_elementwise(graph: Graph) -> None:
    """Replace chains by fused nodes, in place."""
    uses, new = Uses(graph), dict[Node, Node]()
    products = _products(graph, uses)
    for chain in _chains(graph, uses):
        product = _product_before(chain, products, uses)
        if product or len(chain) > 1:
            new[chain[-1]] = (FinishedProduct((*product, *chain)) if product else Chain(tuple(chain))).node()
    replace_nodes(graph, new)


def _chains(graph: Graph, uses: Uses) -> list[list[Node]]:
    """Return the longest chains; each elementwise node is in one."""
    chains: dict[Value, list[Node]] = {}  # result → the chain that ends in it
    for node in filter(_is_elementwise, graph.nodes):
        chain = [node]
        for source in dict.fromkeys(node.values()):
            longer = [*chains[source], *chain] if source in chains and uses.only_reader(source) else chain
            read = leaves(longer)
            same = isinstance(source, Tensor) and source.max_shape == result(node).max_shape
            if same and len(longer) <= MAX_NODES and len(read) <= MAX_OPERANDS and not uses.mutated & set(read):
                chain = longer
        for absorbed in chain[:-1]:
            chains.pop(absorbed.outs[0], None)
        chains[node.outs[0]] = chain
    return list(chains.values())


def _products(graph: Graph, uses: Uses) -> dict[Tensor, list[Node]]:
    """Return products by their results and, with its only reader if that is a view, by the view's result."""
    products = {result(n): [n] for n in graph.nodes if n.op.role == "product" and uses.steady(n)}
    viewed = {result(view): [node, view] for t, (node,) in products.items() if (view := _only_view(t, uses))}
    return products | viewed


def _only_view(t: Tensor, uses: Uses) -> Node | None:
    """Return the only reader of a tensor if it is a view of the same type; otherwise None."""
    view = uses.only_reader(t)
    if view is None or view.op.view is None or result(view).dtype is not t.dtype or result(view) in uses.mutated:
        return None
    return view


def _product_before(chain: list[Node], products: dict[Tensor, list[Node]], uses: Uses) -> list[Node]:
    """Return the last product that only the chain uses, perhaps through a view; empty unless the operands fit it."""
    read, out = leaves(chain), result(chain[-1])
    if len(read) > 1 + MAX_FINISH_OPERANDS or any(not repeats(t.max_shape, out.max_shape) for t in read):
        return []
    private = [t for t in products if t in read and uses.stays_within(t, chain) and t.dtype is out.dtype]
    return next((products[t] for t in reversed(private) if t.max_shape == out.max_shape), [])


def _is_elementwise(node: Node) -> bool:
    """Return True if the node is elementwise float arithmetic."""
    values = [*node.values(), *node.outs]
    if node.op.steps is None or node.mutates or len(node.outs) != 1:
        return False
    if any(not isinstance(t, Tensor) or t.dtype not in FLOATS or t.parts for t in values):
        return False
    try:
        return formula(node, Target()) is not None
    except (PtegpuError, TypeError):
        return False
