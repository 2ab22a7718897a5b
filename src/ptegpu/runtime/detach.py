"""What a program still reads of its files after it was loaded, copied: they may change then, or end earlier.

Weights are on the GPU by then. What is left are slots that the host reads, constants that are used as indices, which
are checked at each size, and small constants, which rules may look at when they trace new sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..limits import copying
from ..plan.method import Call, CompiledMethod, Host, Jump, Operand, Var, variables
from ..plan.plan import Plan

if TYPE_CHECKING:
    from ..compiler.planner import Planner

SMALL = 1 << 16  # bytes


def detach_from_file(outer: CompiledMethod, planners: Iterable[Planner]) -> None:
    """Copy what one method still reads, in place."""
    for var in _slots(outer):
        var.data = _copied(var.data)
    for plan in outer.plans:
        _copy_blobs(plan)
    for planner in planners:
        for tensor in planner.graph.tensors():
            if tensor.data is not None and tensor.data.nbytes <= SMALL:
                tensor.data = _copied(tensor.data)


def _copied(array: np.ndarray | None) -> np.ndarray | None:
    if array is None or array.flags.owndata:
        return array
    copying(array.nbytes)
    return array.copy()


def _slots(outer: CompiledMethod) -> set[Var]:
    found: list[Operand] = [*outer.outputs, *outer.states]
    for item in outer.items:
        if not isinstance(item, Host):
            found += item.inputs
            found += (a for h in item.exact if isinstance(h.instruction, Call) for a in h.instruction.args)
        elif isinstance(item.instruction, Call):
            found += item.instruction.args
        else:
            i = item.instruction
            found.append(i.condition if isinstance(i, Jump) else i.source)
    return {v for operand in found for v in variables(operand)}


def _copy_blobs(plan: Plan) -> None:
    bounds = [b for family in plan.families for b in family.bounds if b.kind == "constant"]
    indices = {plan.buffers[b.source].blob for b in bounds}  # type: ignore[index]
    blobs = plan.blobs
    if isinstance(blobs, list):
        for k, blob in enumerate(blobs):
            if not isinstance(blob, bytes) and (k in indices or memoryview(blob).nbytes <= SMALL):
                copying(memoryview(blob).nbytes)
                blobs[k] = bytes(blob)
