"""Join an RMS norm to the products that are its only readers: for few rows, as in decoding, they compute it themselves.

The products are one node, or several that `siblings` made one. The norm moves down to them. Its result stays a result
of the node, but for few rows it is never stored. If the products cannot take it in, it is computed first, as a
separate norm would be.
"""

from __future__ import annotations

from collections import Counter

from ..graph.graph import Graph, flatten
from ..ops.joined import join, product
from .siblings import is_constant, put


def join_norms(graph: Graph) -> None:
    """Replace norms and the products that read them by joined nodes, in place."""
    users = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    mutated = {t for n in graph.nodes for t in n.mutates}
    candidates = [n for n in graph.nodes if n.op.role == "norm" and not mutated & {*n.values(), *n.outs}]
    norms = {y: n for n in candidates if is_constant(n.args[1]) and (y := n.outs[0]) not in kept and users[y] == 1}
    readers = [n for n in graph.nodes if n.op.role == "product" and n.args and n.args[0] in norms]
    found = {n: norms[n.args[0]] for n in readers if (p := product(n)) and p.packed}  # type: ignore[index]
    put(graph, {n: join("norm", [norm, n]) for n, norm in found.items()}, set(found.values()))
