"""Join chains of elementwise operators into one kernel each: `silu(gate) * up` reads twice and writes once.

A node joins the only node that uses its result. The joined node reads the operands of both, broadcast to its own
shape, and computes their formulas one after the other, in f32. Its shape rule runs theirs, so it is right at every
live size. Only float arithmetic is joined: there, a wider intermediate result is only more exact.

A chain whose operands all have its shape, or its last dimensions, also joins a product that one of them comes from
(the last, where several do): the product's kernels compute it before they store. So `x + linear(y)` is one dispatch.
"""

from __future__ import annotations

from collections import Counter

from ..dtypes import FLOATS
from ..errors import PtegpuError
from ..graph.graph import Graph, Node, Tensor, Value, flatten
from ..ops.joined import formula, join, leaves, repeats, result
from ..plan.target import Target

MAX_OPERANDS = 6  # of a joined node: with its result it stays below a browser's 8 storage buffers
MAX_FINISH_OPERANDS = 2  # beside a product's result: its kernels read up to four tensors, and write one
MAX_NODES = 12


def fuse_elementwise(graph: Graph) -> None:
    """Replace chains by joined nodes, in place."""
    users = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    mutated = {t for n in graph.nodes for t in n.mutates}
    chains: dict[Value, list[Node]] = {}  # result → the chain that ends in it
    absorbed: set[int] = set()
    for node in graph.nodes:
        if not _joinable(node):
            continue
        chain = [node]
        for source in dict.fromkeys(node.values()):
            if source not in chains or source in kept or users[source] != 1:
                continue
            longer = [*chains[source], *chain]
            read = leaves(longer)
            same = isinstance(source, Tensor) and source.max_shape == result(node).max_shape
            if same and len(longer) <= MAX_NODES and len(read) <= MAX_OPERANDS and not mutated & set(read):
                chain = longer
        chains[node.outs[0]] = chain
        absorbed.update(id(n) for n in chain[:-1])
    products = {result(n): [n] for n in graph.nodes if n.op.role == "product" and not mutated & set(n.values())}
    for node in graph.nodes:
        if node.op.view is not None and _sees_product(node, products, users, kept) and not mutated & set(node.outs):
            products[result(node)] = [*products[node.args[0]], node]  # type: ignore[index]
    finished: dict[Value, Node] = {}
    for node in graph.nodes:
        if id(node) in absorbed or node.outs[0] not in chains:
            continue
        chain = chains[node.outs[0]]
        product = _product_before(chain, products, users, kept)
        if product:
            finished[node.outs[0]] = join("finish", [*product, *chain])
            absorbed.update(map(id, product))
    left = [n for n in graph.nodes if id(n) not in absorbed]
    joined = {n.outs[0]: join("chain", chain) for n in left if len(chain := chains.get(n.outs[0], [])) > 1}
    graph.nodes = [finished.get(n.outs[0]) or joined.get(n.outs[0]) or n for n in left]


def _sees_product(view: Node, products: dict[Tensor, list[Node]], users: Counter[Value], kept: set[Value]) -> bool:
    """Whether a view is all that is made of a product: its elements lie where the product's do."""
    source = view.args[0]
    if not isinstance(source, Tensor) or source not in products or source in kept or users[source] != 1:
        return False
    return len(products[source]) == 1 and source.dtype is result(view).dtype


def _product_before(
    chain: list[Node], products: dict[Tensor, list[Node]], users: Counter[Value], kept: set[Value]
) -> list[Node]:
    """The last product whose result only the chain uses, perhaps by a view, if the chain's operands have its shape."""
    read, out = leaves(chain), result(chain[-1])
    if len(read) > 1 + MAX_FINISH_OPERANDS or any(not repeats(t.max_shape, out.max_shape) for t in read):
        return []
    inside = Counter(v for n in chain for v in dict.fromkeys(n.values()))
    found = [t for t in products if t in read and t not in kept and users[t] == inside[t] and t.dtype is out.dtype]
    return next((products[t] for t in reversed(found) if t.max_shape == out.max_shape), [])


def _joinable(node: Node) -> bool:
    if node.op.steps is None or node.mutates or len(node.outs) != 1:
        return False
    tensors = [v for v in (*node.values(), *node.outs) if isinstance(v, Tensor)]
    if len(tensors) != len([*node.values(), *node.outs]) or any(t.dtype not in FLOATS or t.parts for t in tensors):
        return False
    try:
        return formula(node, Target()) is not None
    except (PtegpuError, TypeError):
        return False
