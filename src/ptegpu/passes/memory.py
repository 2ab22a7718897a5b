"""The assignment of buffers to tensors: aliases for views, liveness for temporaries, parts for huge constants.

WebGPU forbids reading and writing one buffer in the same dispatch, so a tensor's buffer is free again only after the
node of its last use, and never holds two tensors of one node. Inputs, constants and states have buffers of their own.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from ..errors import LimitExceeded
from ..graph.graph import Graph, Tensor, flatten
from ..limits import tick
from ..plan.plan import ALIGN, Buffer
from ..plan.target import Target

MAX_CANDIDATES = 256  # buffers that are considered for a temporary; real programs have fewer
ConstantKey: TypeAlias = tuple[int, int, str]  # address, bytes, dtype


@dataclass(slots=True)
class Memory:
    """The buffers of a graph's tensors, shared by all its plans."""

    buffer_of: dict[Tensor, Buffer] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    blobs: list[memoryview | bytes] = field(default_factory=list)
    busy: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # temp buffer → (first, last) nodes, in order

    def scratch(self, node: int, nbytes: int, excluded: set[str]) -> Buffer | None:
        """Return the smallest temporary buffer that fits and is idle while `node` runs."""
        temps = [b for b in self.buffers if b.role == "temp" and b.nbytes >= nbytes and b.name not in excluded]
        free = [b for b in temps if not _overlaps(self.busy[b.name], node, node)]
        return min(free, key=lambda b: b.nbytes, default=None)


def aliases(graph: Graph) -> dict[Tensor, Tensor]:
    """Return the results of views that can share their source's buffer, each with the tensor that owns it.

    A copy remains a copy if the source or the result is written in place later, as the two then differ.
    """
    root: dict[Tensor, Tensor] = {}
    mutated = {t: k for k, node in enumerate(graph.nodes) for t in node.mutates}
    outputs, written = set(flatten(tuple(graph.outputs))), {state for state, _ in graph.writebacks}
    for k, node in enumerate(graph.nodes):
        if node.op.view is None:
            continue
        source, out = node.args[0], node.outs[0]
        assert isinstance(source, Tensor) and isinstance(out, Tensor)
        owner = root.get(source, source)
        if out.dtype is not owner.dtype or owner.parts or out in mutated:
            continue
        if mutated.get(owner, -1) > k or (owner.kind == "state" and (out in outputs or owner in written)):
            continue
        root[out] = owner
    return root


def plan_memory(
    graph: Graph,
    target: Target,
    constants: dict[ConstantKey, str] | None = None,
    before: Memory | None = None,
) -> Memory:
    """Assign buffers; raise LimitExceeded, naming the tensor, if one cannot be bound.

    `constants` names constants by their bytes across the graphs of a program, which may then share them. `before` is
    the graph's memory for other sizes: constants and states keep their buffers.
    """
    names = {} if constants is None else constants
    root = aliases(graph)
    memory = Memory(blobs=before.blobs) if before else Memory()
    intervals = _intervals(graph, root)
    fixed: dict[ConstantKey, Buffer] = {}
    temps: list[Tensor] = []
    reused: set[str] = set()
    for t in graph.tensors():
        if t in root:
            continue
        if t.kind == "temp":
            temps.append(t)
        elif before and t.kind in ("constant", "state"):
            for part in [part for _, part in t.parts] or [t]:
                buffer = memory.buffer_of[part] = before.buffer_of[part]
                if buffer.name not in reused:
                    memory.buffers.append(buffer)
                    reused.add(buffer.name)
        elif t.parts:
            for _, part in t.parts:
                _fixed(memory, part, fixed, names)
        else:
            _check(t, target)
            _fixed(memory, t, fixed, names)
    pool: list[Buffer] = []  # largest first, as temporaries are assigned in the order of their sizes
    for t in sorted(temps, key=lambda t: -t.max_nbytes):
        tick()
        _check(t, target)
        first, last = intervals[t]
        free = [b for b in pool[-MAX_CANDIDATES:] if not _overlaps(memory.busy[b.name], first, last)]
        if free:
            chosen = min(free, key=lambda b: b.nbytes)
        else:
            chosen = Buffer(f"temp{len(memory.busy)}", _padded(t.max_nbytes), "temp")
            memory.buffers.append(chosen)
            pool.append(chosen)
            memory.busy[chosen.name] = []
        insort(memory.busy[chosen.name], (first, last))
        memory.buffer_of[t] = chosen
    for out, owner in root.items():
        memory.buffer_of[out] = memory.buffer_of[owner]
    return memory


def _fixed(memory: Memory, t: Tensor, constants: dict[ConstantKey, Buffer], names: dict[ConstantKey, str]) -> None:
    """Assign a buffer of its own. Constants with the same bytes share one, states never do."""
    name = f"{t.kind}{len(memory.buffers)}"
    key = None
    if t.kind == "constant":
        assert t.data is not None
        key = (t.data.__array_interface__["data"][0], t.max_nbytes, t.dtype.value)
        if key in constants:
            memory.buffer_of[t] = constants[key]
            return
        name = names.setdefault(key, f"constant{len(names)}")
    blob = None
    if t.data is not None and (t.kind == "constant" or np.any(t.data)):  # new buffers are zero
        blob = len(memory.blobs)
        memory.blobs.append(np.ascontiguousarray(t.data).reshape(-1).view(np.uint8).data)
    buffer = Buffer(name, _padded(t.max_nbytes), t.kind, blob)
    memory.buffers.append(buffer)
    memory.buffer_of[t] = buffer
    if key is not None:
        constants[key] = buffer


def _intervals(graph: Graph, root: dict[Tensor, Tensor]) -> dict[Tensor, tuple[int, int]]:
    life: dict[Tensor, tuple[int, int]] = {}
    end = len(graph.nodes)

    def touch(values: Sequence[object], k: int) -> None:
        for v in values:
            if isinstance(v, Tensor):
                owner = root.get(v, v)
                first, last = life.get(owner, (k, k))
                life[owner] = (min(first, k), max(last, k))

    touch(graph.inputs, -1)
    for k, node in enumerate(graph.nodes):
        touch((*node.values(), *node.outs), k)
    touch(list(flatten(tuple(graph.outputs))), end)
    touch([v for pair in graph.writebacks for v in pair], end)
    return life


def _overlaps(busy: list[tuple[int, int]], first: int, last: int) -> bool:
    """Return True if an interval overlaps one of `busy`, which are disjoint and in order."""
    at = bisect_right(busy, last, key=itemgetter(0))
    return at > 0 and busy[at - 1][1] >= first


def _padded(nbytes: int) -> int:
    return max(ALIGN, -(-nbytes // ALIGN) * ALIGN)


def _check(t: Tensor, target: Target) -> None:
    limit = min(target.max_binding_bytes, target.max_buffer_bytes)
    if _padded(t.max_nbytes) > limit:
        raise LimitExceeded(
            f"{t.name}, {t.dtype.value}{list(t.max_shape)}, takes {t.max_nbytes:,} bytes, "
            f"and {target.name} binds at most {limit:,}; name the sizes that you need with sizes=, export with smaller "
            "bounds, or choose another device"
        )
