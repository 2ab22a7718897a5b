"""int64 inside delegates. Their files say int32 of both; what was int64 follows from the program around them.

A result is int64 if an operand is, if it holds places or sums of ints, or if what it goes into is. Then int64 is
computed as it is elsewhere: on the GPU where it provably fits 32 bits, else exactly by the host.
"""

from __future__ import annotations

from ..dtypes import DType
from ..graph.flat import FlatMethod
from ..ops import REGISTRY
from ..ops.spans import CASTS, PLACES, RULES, SUMS, VALUES
from ..plan.method import Call, Var, variables
from ..portable.host import on_host

SMALL = (DType.BOOL, DType.U8, DType.I8, DType.I32, DType.I64)


def widen(flat: FlatMethod) -> None:
    """Give the slots of delegates that held int64 that type, in place."""
    calls = [i for i in flat.code if isinstance(i, Call) and any(v.narrowed for v in (*variables(i.args), *i.outs))]
    while any([_widened(c) for c in calls]):
        pass


def _widened(call: Call) -> bool:
    """Whether a slot of the call is found to be int64."""
    definition = REGISTRY.get(call.op)
    wide = definition is not None and definition.wide
    if call.op in CASTS or not call.outs or not (wide or on_host(call)):
        return False
    found = [v for k, v in enumerate(call.outs) if k == PLACES.get(call.op)]
    first = call.outs[0]
    values = [v for k in VALUES.get(call.op, range(len(call.args))) for v in variables(call.args[k : k + 1])]
    if any(v.dtype is DType.I64 for v in values) or _sums(call):
        found.append(first)
    if first.dtype is DType.I64 and (call.op in RULES or (definition is not None and definition.moves)):
        found += values
    new = [v for v in found if v.narrowed and v.dtype is DType.I32]
    for v in new:
        v.dtype = DType.I64
    return bool(new)


def _sums(call: Call) -> bool:
    """Whether it adds or multiplies ints, which PyTorch does in int64 unless it is told a dtype."""
    at = SUMS.get(call.op)
    source = call.args[0] if call.args else None
    told = at is not None and len(call.args) > at and call.args[at] is not None
    return at is not None and not told and isinstance(source, Var) and source.dtype in SMALL
