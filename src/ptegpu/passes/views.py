"""Leave out views that change nothing and sums with 0, and move the same elements the same way only once."""

from __future__ import annotations

from typing import Any

from ..graph.graph import Arg, Graph, Node, Sym, Tensor, Value
from ..graph.uses import Uses


def merge_views(graph: Graph) -> None:
    """Replace values by others that are the same, in place."""
    known: dict[Value, Value] = {}
    uses = Uses(graph)
    fixed, kept = uses.mutated | {v for v in graph.tensors() if v.kind == "state"}, uses.kept
    seen: dict[Any, Node] = {}
    left = []
    for node in graph.nodes:
        node.args = tuple(_replaced(a, known) for a in node.args)
        if node.op.copies(node.args) and isinstance(node.args[0], Sym) and not kept & set(node.outs):
            known[node.outs[0]] = node.args[0]
            continue
        if not node.op.moves or fixed & {*node.values(), *node.outs}:
            left.append(node)
            continue
        first = seen.setdefault((node.op.name, _key(node.args), tuple(_declared(o) for o in node.outs)), node)
        same = node.args[0] if _is_same(node) else None
        if kept & set(node.outs) or (first is node and same is None):
            left.append(node)
        elif same is not None:
            known[node.outs[0]] = same  # type: ignore[assignment]
        else:
            known |= dict(zip(node.outs, first.outs, strict=True))
    graph.nodes = left


def _replaced(a: Arg, known: dict[Value, Value]) -> Arg:
    if isinstance(a, tuple):
        return tuple(_replaced(x, known) for x in a)
    return known.get(a, a) if isinstance(a, Value) else a


def _key(a: Arg) -> object:
    """Return an argument with its type: 1 and True are different."""
    return tuple(map(_key, a)) if isinstance(a, tuple) else (type(a), a)


def _declared(v: Value) -> object:
    return (v.dtype, v.max_shape) if isinstance(v, Tensor) else None


def _is_same(node: Node) -> bool:
    """Return True if a view has the shape of its source, whatever that is."""
    source, out = node.args[0], node.outs[0]
    if node.op.view is None or not isinstance(source, Tensor) or not isinstance(out, Tensor):
        return False
    if source.dtype is not out.dtype or source.max_shape != out.max_shape or len(list(node.values())) > 1:
        return False
    sizes = node.args[1] if len(node.args) == 2 else None
    return node.op.view(*node.op.bind(node.args)) is source.shape or sizes == source.max_shape
