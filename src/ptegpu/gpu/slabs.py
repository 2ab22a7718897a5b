"""Slabs: large WebGPU buffers whose slices are the constants, the states, or the derived constants of a plan.

One dispatch can bind few buffers, but a slab as a whole. WebGPU refuses a dispatch that reads one slice and writes
another, and a copy from slice to slice, even though these never overlap. Nothing writes constants, and only dispatches
that run once write derived ones; states of one slab are apart from those that a dispatch or a copy combines them with.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from ..plan.plan import OFFSET_ALIGN, Buffer, Plan
from ..plan.target import Target


class Part(NamedTuple):
    """A buffer of a plan, and its offset in the WebGPU buffer."""

    buffer: Buffer
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.buffer.nbytes


def layout(
    buffers: Sequence[Buffer], derived: Container[str], apart: Mapping[str, set[str]], target: Target
) -> list[list[Part]]:
    """Return the WebGPU buffers to make, each as its parts: one, or the slices of a slab.

    A slab can be bound as a whole. A buffer shares none with those that `apart` lists under its name. `derived` are the
    names of temporaries that hold derived constants.
    """
    limit = slab_bytes(target)
    allocations: list[list[Part]] = []
    slabs: dict[str, list[list[Part]]] = {"constant": [], "state": [], "derived": []}
    small_first = sorted(
        buffers, key=lambda b: b.nbytes if b.name in derived else 0
    )  # together, if there are many slabs
    for buffer in small_first:
        role = "derived" if buffer.name in derived else buffer.role
        candidates, others = slabs.get(role, []), apart.get(buffer.name, set())
        for slab in candidates:
            offset = -(-slab[-1].end // OFFSET_ALIGN) * OFFSET_ALIGN
            if offset + buffer.nbytes <= limit and others.isdisjoint([part.buffer.name for part in slab if others]):
                slab.append(Part(buffer, offset))
                break
        else:
            allocations.append([Part(buffer, 0)])
            candidates.append(allocations[-1])
    return allocations


def slab_bytes(target: Target) -> int:
    """Return the most bytes of a slab."""
    return min(target.max_binding_bytes, target.max_buffer_bytes)


def derived_constants(plan: Plan) -> set[str]:
    """Return the names of temporaries that only dispatches that run once write, from constants."""
    writers: dict[int, bool] = {}
    for dispatch in (d for f in plan.families for choices in f.steps for c in choices for d in c.dispatches):
        for bound, access in zip(dispatch.bindings, plan.kernels[dispatch.kernel].access, strict=True):
            if access == "write":
                writers[bound.buffer] = writers.get(bound.buffer, True) and dispatch.once
    return {plan.buffers[k].name for k, once in writers.items() if once and plan.buffers[k].role == "temp"}


def conflicts(plan: Plan, names: Container[str]) -> dict[str, set[str]]:
    """Return, by name, which of these states must not share a slab: a dispatch reads one and writes the other, or one
    is copied to the other.
    """
    states = {k: b.name for k, b in enumerate(plan.buffers) if b.role == "state" and b.name in names}
    apart: dict[str, set[str]] = {}
    if len(states) < 2:
        return apart
    writes = [[position for position, access in enumerate(k.access) if access == "write"] for k in plan.kernels]
    pairs = {(c.source, c.target) for c in plan.copies}
    for dispatch in (d for f in plan.families for choices in f.steps for c in choices for d in c.dispatches):
        bound = dispatch.bindings
        written = {bound[position].buffer for position in writes[dispatch.kernel]} & states.keys()
        if written:
            pairs.update(product({b.buffer for b in bound} - written, written))
    for a, b in pairs:
        if a in states and b in states:
            apart.setdefault(states[a], set()).add(states[b])
            apart.setdefault(states[b], set()).add(states[a])
    return apart
