"""Join an RMS norm to the products that are its only readers: for few rows, as in decoding, they compute it themselves.

The products are one node, or several that `siblings` made one. The norm moves down to them. Its result stays a result
of the node, but for few rows it is never stored. If the products cannot take it in, it is computed first, as a
separate norm would be. So the node is right at every live size, and for weights in parts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from ..graph.graph import Graph, Node, flatten
from ..ops.linear_q4 import Few, Norm, normalised
from ..ops.registry import Dispatch
from ..plan.target import Target
from .siblings import Launches, as_one, is_constant, put


def join_norms(graph: Graph) -> None:
    """Replace norms and the products that read them by joined nodes, in place."""
    users = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    mutated = {t for n in graph.nodes for t in n.mutates}
    candidates = [n for n in graph.nodes if n.op.prologue and not mutated & {*n.values(), *n.outs}]
    norms = {y: n for n in candidates if is_constant(n.args[1]) and (y := n.outs[0]) not in kept and users[y] == 1}
    found = {n: norms[x] for n in graph.nodes if n.op.abreast and (x := n.args[0]) in norms}
    put(graph, {n: as_one([norm, n], partial(_ahead, norm)) for n, norm in found.items()}, set(found.values()))


def _ahead(norm: Node, launches: Launches, target: Target) -> list[Dispatch]:
    """The products with the norm in them, if each can take it in."""
    before, products = launches
    x, weight, eps = norm.op.bind(norm.args)
    few = [normalised(d, x, Norm(weight, eps), target) for d in products if isinstance(d, Few)]
    taken: list[Dispatch] = [replace(d, label=f"{norm.name}, {d.label}") for d in few if d]
    return taken if len(taken) == len(products) else [*before, *products]
