"""Fuse attention with its neighbours in a decoder, so that the attention of a decode step is one dispatch.

- The rotary embedding of its queries and new keys, and the writes of new keys and values into its caches, move down to
  it, if it is the only reader of their results. For few rows, its kernel does both.
- A product with packed weights that is the only reader of its result moves up to it, with views between the two. For
  few rows, the product merges the partial results of attention whose keys are split over workgroups.

All results except those of views remain results of the node: for many rows, members are computed one by one.
"""

from __future__ import annotations

from ..graph.graph import Graph, Node, Tensor
from ..graph.match import Op, find_match
from ..graph.uses import Uses, replace_nodes
from ..ops.attention_record import AttentionWork, CacheWrite, Rotary
from ..ops.fused import AttentionProduct, DecodedAttention
from ..ops.nodes import product, result, work

MERGING = Op("product", (Op("attention", name="y"),))


def fuse_attention(graph: Graph) -> None:
    """Replace attention and its neighbours by fused nodes, in place."""
    uses, attentions = Uses(graph), [n for n in graph.nodes if n.op.role == "attention"]
    groups = [(*before, n) for n in attentions if (before := _before(n, graph, uses))]
    replace_nodes(graph, {members[-1]: DecodedAttention(members).node() for members in groups})
    uses = Uses(graph)
    groups = [members for n in graph.nodes if (members := _merged(n, uses))]
    replace_nodes(graph, {members[0]: AttentionProduct(members).node() for members in groups})


def _before(node: Node, graph: Graph, uses: Uses) -> list[Node]:
    """Return the rotary embedding and the cache writes that only this attention needs, in their order."""
    attention = work(node)
    if not isinstance(attention, AttentionWork):
        return []
    before, new = [], attention.new
    if new is None:
        writers = [_writer(cache, node, graph, uses) for cache in (attention.k, attention.v)]
        writes = [w for n in writers if n and isinstance(w := work(n), CacheWrite)]
        same = len(writes) == 2 and all(w.start is attention.start or w.start == attention.start for w in writes)
        if same and writes[0].values[0].max_shape == writes[1].values[0].max_shape:
            before += [n for n in writers if n]
            new = (writes[0].values[0], writes[1].values[0])
    turner = uses.maker.get(attention.q)
    if new and turner and turner.op.role == "rotary" and uses.steady(turner):
        rotary = work(turner)
        private = all(map(uses.only_reader, turner.outs))
        if private and isinstance(rotary, Rotary) and rotary.outs == (attention.q, new[0]):
            before.insert(0, turner)
    return sorted(before, key=uses.place.__getitem__)


def _writer(cache: Tensor, node: Node, graph: Graph, uses: Uses) -> Node | None:
    """Return the last node that writes the cache before `node`, if nothing uses the cache between them."""
    touching = [n for n in graph.nodes[: uses.place[node]] if cache in (*n.values(), *n.mutates)]
    last = touching[-1] if touching else None
    return last if last and last.op.role == "cache" and uses.steady(last) else None


def _merged(node: Node, uses: Uses) -> tuple[Node, ...]:
    """Return attention, views of its result and the product `node`, if nothing else reads these results."""
    match = find_match(node, uses, [MERGING], lambda n: n.op.view is not None)
    if match is None:
        return ()
    attention, *views, _ = members = sorted(match.nodes, key=uses.place.__getitem__)
    y, a, p = match.tensors["y"], work(attention), product(node)
    path = [y, *map(result, views)]
    if not isinstance(a, AttentionWork) or a.heads_first or a.y is not y or y is not attention.outs[-1]:
        return ()
    if p is None or p.a is not node.args[0] or p.siblings or p.norm or not p.packed:
        return ()
    if any(t.dtype is not y.dtype or not uses.only_reader(t) for t in path):
        return ()
    others = {v for n in members[1:] for v in n.values()}.difference(path)
    early = all(uses.place[uses.maker[v]] < uses.place[attention] for v in others if v in uses.maker)
    return tuple(members) if early and not others & uses.mutated else ()
