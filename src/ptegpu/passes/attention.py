"""Join attention with what comes before and after it in a decoder: a decode step's attention is one dispatch then.

- The rotary embedding of its queries and new keys, and the writes of new keys and values into its caches, move down to
  it, if it is the only reader of what they give. For few rows, its kernel does both on the way.
- A product with packed weights that is the only reader of its result moves up to it, with views between the two. For
  few rows, it merges the parts that attention leaves where keys are split over workgroups.

All results but those that a view stands for stay results of the node: for many rows, members are computed one by one.
"""

from __future__ import annotations

from collections import Counter

from ..graph.graph import Graph, Node, Tensor, Value, flatten
from ..ops.attention_record import Attention, Rotary, Written
from ..ops.joined import join, tensors, work
from ..ops.product import Product
from .siblings import put


class _Uses:
    """Who makes, reads and changes what."""

    def __init__(self, graph: Graph) -> None:
        self.place = {n: k for k, n in enumerate(graph.nodes)}
        self.made = {o: n for n in graph.nodes for o in n.outs}
        self.readers = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
        self.kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
        self.mutated = {t for n in graph.nodes for t in n.mutates}

    def only(self, value: Value) -> bool:
        """Whether one node reads it, and nobody else, and it is never written again."""
        return self.readers[value] == 1 and value not in self.kept and value not in self.mutated

    def steady(self, node: Node) -> bool:
        """Whether it may run later: nothing that it reads, but for what it writes itself, changes."""
        return not self.mutated & (set(node.values()) - set(node.mutates))


def join_attention(graph: Graph) -> None:
    """Replace attention and its neighbours by joined nodes, in place."""
    uses = _Uses(graph)
    joined: dict[Node, Node] = {}
    gone: set[Node] = set()
    for node in [n for n in graph.nodes if n.op.role == "attention"]:
        before = _before(node, graph, uses)
        if before:
            joined[node] = join("attention", [*before, node])
            gone |= {node, *before}
    put(graph, joined, gone)
    uses, joined, gone = _Uses(graph), {}, set()
    readers = {v: n for n in graph.nodes for v in n.values()}
    for node in [n for n in graph.nodes if n.op.role == "attention"]:
        after = _after(node, readers, uses)
        if after:
            joined[node] = join("merged", [node, *after])
            gone |= {node, *after}
    put(graph, joined, gone)


def _before(node: Node, graph: Graph, uses: _Uses) -> list[Node]:
    """The rotary embedding and the writes that only this attention needs, in their order."""
    attention = work(node)
    if not isinstance(attention, Attention):
        return []
    found, new = [], attention.new
    if new is None:
        writers = [_writer(cache, node, graph, uses) for cache in (attention.k, attention.v)]
        writes = [w for n in writers if n and isinstance(w := work(n), Written)]
        same = len(writes) == 2 and all(w.start is attention.start or w.start == attention.start for w in writes)
        if same and writes[0].values[0].max_shape == writes[1].values[0].max_shape:
            found += [n for n in writers if n]
            new = (writes[0].values[0], writes[1].values[0])
    turner = uses.made.get(attention.q)
    if new and turner and turner.op.role == "rotary" and uses.steady(turner):
        rotary = work(turner)
        if isinstance(rotary, Rotary) and rotary.outs == (attention.q, new[0]) and all(map(uses.only, rotary.outs)):
            found.insert(0, turner)
    return sorted(found, key=uses.place.__getitem__)


def _writer(cache: Tensor, node: Node, graph: Graph, uses: _Uses) -> Node | None:
    """What writes the cache last before the node, if nothing else uses the cache between them."""
    touching = [n for n in graph.nodes[: uses.place[node]] if cache in (*n.values(), *n.mutates)]
    last = touching[-1] if touching else None
    return last if last and last.op.role == "cache" and uses.steady(last) else None


def _after(node: Node, readers: dict[Value, Node], uses: _Uses) -> list[Node]:
    """Views of the result and the product that reads it, if nobody else does."""
    attention = work(node)
    value: Value = tensors(node)[-1]
    if not isinstance(attention, Attention) or attention.heads_first or value is not attention.y:
        return []
    found: list[Node] = []
    while uses.only(value) and (reader := readers[value]).op.view is not None:
        if tensors(reader)[0].dtype is not attention.y.dtype:
            return []
        found.append(reader)
        value = reader.outs[0]
    product = readers.get(value)
    if not product or not uses.only(value) or product.op.role != "product" or product.args[0] is not value:
        return []
    p = work(product)
    if not isinstance(p, Product) or p.a is not value or p.siblings or p.norm or not p.packed:
        return []
    others = {v for n in (*found, product) for v in n.values()} - {
        tensors(node)[-1],
        *(o for n in found for o in n.outs),
    }
    early = all(uses.place[uses.made[v]] < uses.place[node] for v in others if v in uses.made)
    return [*found, product] if early and not others & uses.mutated else []
