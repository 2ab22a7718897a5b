"""Store key-value caches in half, where a target asks for it: half the memory, and half of what attention reads.

It takes states in float32 that nothing but cache writes and attention touch: these read and write any float type, and
compute in f32 as before. What was written is rounded, also for the step that writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..dtypes import DType
from ..graph.graph import Graph, Node, Tensor
from ..graph.uses import Uses
from ..ops.attention_record import Attention, Written
from ..ops.nodes import work


def halve_caches(graph: Graph) -> int:
    """Change the type of caches, in place; return how many there were."""
    nodes = [n for node in graph.nodes for n in _parts(node)]
    states = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t.kind == "state"}
    others = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t not in _caches(n)}
    caches = [t for t in states - others - Uses(graph).kept if t.dtype is DType.F32]
    for t in caches:
        t.dtype = DType.F16
        t.data = None if t.data is None else t.data.astype(np.float16)
    return len(caches)


def _parts(node: Node) -> Iterator[Node]:
    """Yield the node, or what it was made of."""
    if not node.members:
        yield node
    for member in node.members:
        yield from _parts(member)


def _caches(node: Node) -> tuple[Tensor, ...]:
    """Return what the node touches as caches only."""
    done = work(node) if node.op.role in ("attention", "cache") else None
    if isinstance(done, Attention):
        return tuple({done.k, done.v} - {done.q, done.mask, *(done.new or ())})
    return tuple(set(done.caches) - set(done.values)) if isinstance(done, Written) else ()
