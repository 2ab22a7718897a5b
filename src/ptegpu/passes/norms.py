"""Join an RMS norm to the products that are its only readers: for few rows, as in decoding, they compute it themselves.

The products are one node, or several that `siblings` made one. The norm moves down to them, and so does what takes its
rows out of a larger tensor, such as the last one of a prompt. Its result stays a result
of the node, but for few rows it is never stored. If the products cannot take it in, it is computed first, as a
separate norm would be.
"""

from __future__ import annotations

from collections import Counter

from ..graph.graph import Graph, Tensor, flatten
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
    rows = {n.outs[0]: n for n in graph.nodes if n.op.role == "row" and not mutated & set(n.values())}
    joined = {}
    for n, norm in found.items():
        (x,) = (t for t in norm.args[:1] if isinstance(t, Tensor))
        taken = [rows[x]] if x in rows and users[x] == 1 and x not in kept else []
        joined[n] = [*taken, norm, n]
    put(graph, {n: join("norm", members) for n, members in joined.items()}, {m for ms in joined.values() for m in ms})
