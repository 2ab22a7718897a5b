"""Which buffer each tensor lives in: aliases for views, liveness for temporaries, pieces for huge constants.

WebGPU forbids one buffer being read and written in one dispatch, so a tensor's buffer is free again only after the
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

LOOKED_AT = 256  # temporaries that a tensor may be put into; real programs have fewer
ConstantKey: TypeAlias = tuple[int, int, str]  # address, bytes, dtype


@dataclass(slots=True)
class Memory:
    """The outcome: a buffer per tensor, shared by all plans of the graph."""

    buffer_of: dict[Tensor, Buffer] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    blobs: list[memoryview | bytes] = field(default_factory=list)
    busy: dict[str, list[tuple[int, int]]] = field(
        default_factory=dict
    )  # temp buffer → its (first, last) node intervals, in order

    def scratch(self, node: int, nbytes: int, taken: set[str]) -> Buffer | None:
        """A temp buffer that is idle while `node` runs, for its scratch; the smallest that fits."""
        free = [
            b
            for b in self.buffers
            if b.role == "temp"
            and b.nbytes >= nbytes
            and b.name not in taken
            and not _overlaps(self.busy[b.name], node, node)
        ]
        return min(free, key=lambda b: b.nbytes, default=None)


def aliases(graph: Graph) -> dict[Tensor, Tensor]:
    """View results that can share their source's buffer, mapped to the tensor that owns it.

    A copy stays a copy if the source is written in place later, or if the result is: the two then differ.
    """
    root: dict[Tensor, Tensor] = {}
    mutated: dict[Tensor, int] = {}
    for k, node in enumerate(graph.nodes):
        for t in node.mutates:
            mutated[t] = k
    outputs = set(flatten(tuple(graph.outputs)))
    for k, node in enumerate(graph.nodes):
        if node.op.view is None:
            continue
        source, out = node.args[0], node.outs[0]
        assert isinstance(source, Tensor) and isinstance(out, Tensor)
        owner = root.get(source, source)
        if out.dtype is not owner.dtype or owner.parts or out in mutated:
            continue
        if mutated.get(owner, -1) > k or (owner.kind == "state" and (out in outputs or _written(graph, owner))):
            continue
        root[out] = owner
    return root


def _written(graph: Graph, state: Tensor) -> bool:
    return any(s is state for s, _ in graph.writebacks)


def plan_memory(
    graph: Graph,
    target: Target,
    constants: dict[ConstantKey, str] | None = None,
    before: Memory | None = None,
) -> Memory:
    """Assign buffers; LimitExceeded, naming the tensor, if one cannot be bound.

    `constants` names constants by their bytes across the graphs of a program, which may then share them. `before` is
    the graph's memory for other sizes: constants and states keep the buffers that they have there.
    """
    names = {} if constants is None else constants
    root = aliases(graph)
    memory = Memory(blobs=before.blobs) if before else Memory()
    intervals = _intervals(graph, root)
    fixed: dict[ConstantKey, Buffer] = {}
    temps: list[Tensor] = []
    made: list[Buffer] = []
    kept: set[str] = set()
    for t in graph.tensors():
        if t in root:
            continue
        if t.kind == "temp":
            temps.append(t)
        elif before and t.kind in ("constant", "state"):
            for part in [part for _, part in t.parts] or [t]:
                buffer = memory.buffer_of[part] = before.buffer_of[part]
                if buffer.name not in kept:
                    memory.buffers.append(buffer)
                    kept.add(buffer.name)
        elif t.parts:
            for _, part in t.parts:
                _fixed(memory, part, fixed, names)
        else:
            _check(t, target)
            _fixed(memory, t, fixed, names)
    for t in sorted(temps, key=lambda t: -t.max_nbytes):
        tick()
        _check(t, target)
        first, last = intervals[t]
        need = _padded(t.max_nbytes)
        # Those made last are the smallest that are large enough.
        fits = [b for b in made[-LOOKED_AT:] if not _overlaps(memory.busy[b.name], first, last)]
        if fits:
            chosen = min(fits, key=lambda b: b.nbytes)
        else:
            chosen = Buffer(f"temp{len(memory.busy)}", need, "temp")
            memory.buffers.append(chosen)
            made.append(chosen)
            memory.busy[chosen.name] = []
        insort(memory.busy[chosen.name], (first, last))
        memory.buffer_of[t] = chosen
    for out, owner in root.items():
        memory.buffer_of[out] = memory.buffer_of[owner]
    return memory


def _fixed(memory: Memory, t: Tensor, known: dict[ConstantKey, Buffer], names: dict[ConstantKey, str]) -> None:
    """A buffer of its own; constants with the same bytes share one, states never."""
    name = f"{t.kind}{len(memory.buffers)}"
    key = None
    if t.kind == "constant":
        assert t.data is not None
        key = (t.data.__array_interface__["data"][0], t.max_nbytes, t.dtype.value)
        if key in known:
            memory.buffer_of[t] = known[key]
            return
        name = names.setdefault(key, f"constant{len(names)}")
    blob = None
    if t.data is not None and (t.kind == "constant" or np.any(t.data)):  # a cache starts with zeros: none to write
        blob = len(memory.blobs)
        memory.blobs.append(np.ascontiguousarray(t.data).reshape(-1).view(np.uint8).data)
    buffer = Buffer(name, _padded(t.max_nbytes), t.kind, blob)
    memory.buffers.append(buffer)
    memory.buffer_of[t] = buffer
    if key is not None:
        known[key] = buffer


def _intervals(graph: Graph, root: dict[Tensor, Tensor]) -> dict[Tensor, tuple[int, int]]:
    """(first, last) node of each owner's life."""
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
    """Of intervals in order, none of which overlap: only the last that begins in time can."""
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
