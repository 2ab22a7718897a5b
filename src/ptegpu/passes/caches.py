"""Store key-value caches in a narrower type if a target asks for it: less memory, and less to read for attention.

The pass changes float32 states that only cache writes and attention touch: these operators accept any float type and
compute in f32. Attention sees rounded values, even in the step that writes them.

- F16 takes half the memory.
- Q8 takes 9/32 of it: blocks of 32 elements share a scale (`kernels/blocks.py`). With one scale for a whole key, its
  few large channels would round away the others; a scale in f16 could not represent small values. The elements of a
  position must fill whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ..dtypes import BLOCK, DType
from ..graph.graph import Graph, Node, Tensor
from ..graph.uses import Uses
from ..kernels.blocks import blocks_of
from ..ops.attention_record import AttentionWork, CacheWrite
from ..ops.nodes import work


def narrow_caches(graph: Graph, dtype: DType) -> int:
    """Change the type of caches, in place; return their number."""
    nodes = [n for node in graph.nodes for n in _parts(node)]
    states = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t.kind == "state"}
    others = {t for n in nodes for t in n.values() if isinstance(t, Tensor) and t not in _caches(n)}
    caches = [t for t in states - others - Uses(graph).kept if t.dtype is DType.F32]
    if dtype is DType.Q8:
        caches = [t for t in caches if t.rank == 4 and prod(t.shape[2:]) % BLOCK == 0]
    for t in caches:
        t.dtype = dtype
        if t.data is not None:
            t.data = blocks_of(t.data) if dtype is DType.Q8 else t.data.astype(np.float16)
    return len(caches)


def _parts(node: Node) -> Iterator[Node]:
    """Yield the node or, if it is fused, its members."""
    if not node.members:
        yield node
    for member in node.members:
        yield from _parts(member)


def _caches(node: Node) -> tuple[Tensor, ...]:
    """Return the tensors that the node uses as caches and nothing else."""
    if node.op.role == "pages":
        keys, values = node.mutates
        return node.mutates if keys.shape == values.shape else ()
    record = work(node) if node.op.role in ("attention", "cache") else None
    if isinstance(record, AttentionWork):
        return tuple({record.k, record.v} - {record.q, record.mask, *(record.new or ())})
    return tuple(set(record.caches) - set(record.values)) if isinstance(record, CacheWrite) else ()
