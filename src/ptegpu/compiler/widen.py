"""int64 inside delegates. Their files say int32 of both; what was int64 follows from the program around them.

A result is int64 if an operand is, if it holds places or sums of ints, or if what it goes into is. Then int64 is
computed as it is elsewhere: on the GPU where it provably fits 32 bits, else exactly by the host.
"""

from __future__ import annotations

from ..dtypes import DType
from ..graph.flat import FlatMethod
from ..ops.lookup import facts_of, operands
from ..ops.spans import Operands
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
    facts = facts_of(call.op)
    if facts.casts or not call.outs or not (facts.wide or on_host(call)):
        return False
    found = [v for k, v in enumerate(call.outs) if k == facts.places]
    first, named = call.outs[0], operands(call)
    values = [v for name in facts.elements or named for v in variables(named[name])]
    if any(v.dtype is DType.I64 for v in values) or (facts.sums and _sums(named)):
        found.append(first)
    if first.dtype is DType.I64 and facts.span is not None:
        found += values
    new = [v for v in found if v.narrowed and v.dtype is DType.I32]
    for v in new:
        v.dtype = DType.I64
    return bool(new)


def _sums(named: Operands) -> bool:
    """Return whether ints are summed, which PyTorch does in int64 unless the call names a dtype."""
    x = named["x"]
    return named.get("dtype") is None and isinstance(x, Var) and x.dtype in SMALL
