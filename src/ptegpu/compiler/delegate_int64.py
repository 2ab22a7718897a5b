"""int64 inside delegates, whose files declare it as int32; the original type follows from the surrounding program.

A result is int64 if an operand is int64, if it holds indices or sums of ints, or if a value computed from it is int64.
Such values are then computed as elsewhere: on the GPU if they provably fit 32 bits, otherwise exactly on the host.
"""

from __future__ import annotations

from ..dtypes import DType
from ..graph.flat import FlatMethod
from ..ops.lookup import facts_of, operands
from ..ops.spans import Operands
from ..plan.method import Call, Var, variables
from ..portable.host import on_host

SMALL = (DType.BOOL, DType.U8, DType.I8, DType.I32, DType.I64)


def restore_int64(flat: FlatMethod) -> None:
    """Change the dtype of slots in delegates that were int64 back to it, in place."""
    calls = [i for i in flat.code if isinstance(i, Call) and any(v.narrowed for v in (*variables(i.args), *i.outs))]
    while any([_restored(c) for c in calls]):
        pass


def _restored(call: Call) -> bool:
    """Restore slots of one call; return True if any changed."""
    facts = facts_of(call.op)
    if facts.casts or not call.outs or not (facts.wide or on_host(call)):
        return False
    wide = [v for k, v in enumerate(call.outs) if k == facts.places]
    first, named = call.outs[0], operands(call)
    values = [v for name in facts.elements or named for v in variables(named[name])]
    if any(v.dtype is DType.I64 for v in values) or (facts.sums and _sums(named)):
        wide.append(first)
    if first.dtype is DType.I64 and facts.span is not None:
        wide += values
    changed = [v for v in wide if v.narrowed and v.dtype is DType.I32]
    for v in changed:
        v.dtype = DType.I64
    return bool(changed)


def _sums(named: Operands) -> bool:
    """Return True if ints are summed, which PyTorch does in int64 unless the call names a dtype."""
    x = named["x"]
    return named.get("dtype") is None and isinstance(x, Var) and x.dtype in SMALL
