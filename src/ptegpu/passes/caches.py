"""Store key-value caches in half, where a target asks for it: half the memory, and half of what attention reads.

It takes states in float32 that nothing but cache writes and attention touch: these read and write any float type, and
compute in f32 as before. What was written is rounded, also for the step that writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..dtypes import DType
from ..graph.graph import Graph, Node, Tensor, flatten
from ..ops.attention_record import Attention, Written
from ..ops.joined import work


def halve_caches(graph: Graph) -> int:
    """Change the type of caches, in place; how many there were."""
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    nodes = [n for node in graph.nodes for n in _parts(node)]
    states = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t.kind == "state"} - kept
    others = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t not in _caches(n)}
    found = [t for t in states - others if t.dtype is DType.F32]
    for t in found:
        t.dtype = DType.F16
        t.data = None if t.data is None else t.data.astype(np.float16)
    return len(found)


def _parts(node: Node) -> Iterator[Node]:
    """The node, or what it was made of."""
    if not node.members:
        yield node
    for member in node.members:
        yield from _parts(member)


def _caches(node: Node) -> tuple[Tensor, ...]:
    """What the node touches as caches only."""
    done = work(node) if node.op.role in ("attention", "cache") else None
    if isinstance(done, Attention):
        return tuple({done.k, done.v} - {done.q, done.mask, *(done.new or ())})
    return tuple(set(done.caches) - set(done.values)) if isinstance(done, Written) else ()
