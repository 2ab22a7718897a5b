"""Remove views that change nothing and sums with 0, and merge nodes that move the same elements the same way."""

from __future__ import annotations

from typing import Any

from ..graph.graph import Arg, Graph, Node, Sym, Tensor, Value
from ..graph.uses import Uses
from ..ops.nodes import replaced


def merge_views(graph: Graph) -> None:
    """Replace values by equal ones, in place."""
    replacements: dict[Value, Arg] = {}
    uses = Uses(graph)
    fixed, outputs = uses.mutated | {v for v in graph.tensors() if v.kind == "state"}, uses.kept
    first_by_key: dict[Any, Node] = {}
    remaining = []
    for node in graph.nodes:
        node.args = tuple(replaced(a, replacements) for a in node.args)
        if node.op.copies(node.args) and isinstance(node.args[0], Sym) and not outputs & set(node.outs):
            replacements[node.outs[0]] = node.args[0]
            continue
        if not node.op.moves or fixed & {*node.values(), *node.outs}:
            remaining.append(node)
            continue
        outs = tuple((o.dtype, o.max_shape) if isinstance(o, Tensor) else None for o in node.outs)
        first = first_by_key.setdefault((node.op.name, _key(node.args), outs), node)
        same = node.args[0] if _is_same(node) else None
        if outputs & set(node.outs) or (first is node and same is None):
            remaining.append(node)
        elif same is not None:
            replacements[node.outs[0]] = same
        else:
            replacements |= dict(zip(node.outs, first.outs, strict=True))
    graph.nodes = remaining


def _key(a: Arg) -> object:
    """Return an argument with its type: 1 and True are different."""
    return tuple(map(_key, a)) if isinstance(a, tuple) else (type(a), a)


def _is_same(node: Node) -> bool:
    """Return True if a view has the shape of its source at every size."""
    source, out = node.args[0], node.outs[0]
    if node.op.view is None or not isinstance(source, Tensor) or not isinstance(out, Tensor):
        return False
    if source.dtype is not out.dtype or source.max_shape != out.max_shape or len(list(node.values())) > 1:
        return False
    sizes = node.args[1] if len(node.args) == 2 else None
    return node.op.view(*node.op.bind(node.args)) is source.shape or sizes == source.max_shape
