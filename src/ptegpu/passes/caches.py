"""Store key-value caches as halves if a target asks for it: half the memory, and half the bytes that attention reads.

The pass changes float32 states that only cache writes and attention touch: these operators accept any float type and
compute in f32. Attention sees rounded values, even in the step that writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..dtypes import DType
from ..graph.graph import Graph, Node, Tensor
from ..graph.uses import Uses
from ..ops.attention_record import AttentionWork, CacheWrite
from ..ops.nodes import work


def halve_caches(graph: Graph) -> int:
    """Change the type of caches, in place; return their number."""
    nodes = [n for node in graph.nodes for n in _parts(node)]
    states = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t.kind == "state"}
    others = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t not in _caches(n)}
    caches = [t for t in states - others - Uses(graph).kept if t.dtype is DType.F32]
    for t in caches:
        t.dtype = DType.F16
        t.data = None if t.data is None else t.data.astype(np.float16)
    return len(caches)


def _parts(node: Node) -> Iterator[Node]:
    """Yield the node or, if it is fused, its members."""
    if not node.members:
        yield node
    for member in node.members:
        yield from _parts(member)


def _caches(node: Node) -> tuple[Tensor, ...]:
    """Return the tensors that the node uses as caches and nothing else."""
    record = work(node) if node.op.role in ("attention", "cache") else None
    if isinstance(record, AttentionWork):
        return tuple({record.k, record.v} - {record.q, record.mask, *(record.new or ())})
    return tuple(set(record.caches) - set(record.values)) if isinstance(record, CacheWrite) else ()
