"""Rewrites of int64 values: their dtypes inside delegates, and zero tests of their products.

Files of delegates declare int64 as int32; the original type follows from the surrounding program. A result is int64 if
an operand is int64, if it holds indices or sums of ints, or if a value computed from it is int64. Such values are then
computed as elsewhere: on the GPU if they provably fit 32 bits, otherwise exactly on the host.

Zero tests of products, such as masks, become zero tests of the factors. A factor that comes from the caller has 32 bits
on the GPU, and is checked to fit. A product of two such factors never wraps in 64 bits, so it is 0 only if one of them
is.
"""

from __future__ import annotations

from collections import Counter

from ..dtypes import DType
from ..graph.flat import FlatMethod
from ..ops.elementwise import AND
from ..ops.lookup import facts_of, operands
from ..plan.method import Call, Instruction, Var, variables
from ..portable.host import on_host
from .order import replace, writes

SUMMED_IN_INT64 = (DType.BOOL, DType.U8, DType.I8, DType.I32, DType.I64)


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
    x = named.get("x")
    summed = facts.sums and named.get("dtype") is None and isinstance(x, Var) and x.dtype in SUMMED_IN_INT64
    if summed or any(v.dtype is DType.I64 for v in values):
        wide.append(first)
    if first.dtype is DType.I64 and facts.span is not None:
        wide += values
    changed = [v for v in wide if v.narrowed and v.dtype is DType.I32]
    for v in changed:
        v.dtype = DType.I64
    return bool(changed)


def replace_zero_tests(flat: FlatMethod) -> None:
    """Replace zero tests of products of input values by tests of the factors, in place."""
    written = Counter(v for i in flat.code for v in writes(i))
    from_caller = {v for v in flat.inputs if isinstance(v, Var) and _is_int(v) and not written[v]}  # also after moves
    products: dict[Var, tuple[Var, ...]] = {}
    code: list[list[Instruction]] = []
    tested: set[Var] = set()
    for i in flat.code:
        code.append([i])
        if not isinstance(i, Call) or len(i.outs) != 1 or written[i.outs[0]] != 1 or i.outs[0].kind != "temp":
            continue
        source, out, facts = next((v for v in i.args[:1] if isinstance(v, Var)), None), i.outs[0], facts_of(i.op)
        factors = tuple(v for v in i.args if isinstance(v, Var) and v.dtype is DType.I64)
        in_range = len(factors) == len(i.args) and from_caller.issuperset(factors)
        if facts.multiplies and out.dtype is DType.I64 and in_range:
            products[out] = factors
        elif source in from_caller and facts.moves and _is_int(out):
            from_caller.add(out)
        elif source is not None and source in products and _tests_zero(i):
            code[-1] = [Call(AND, products[source], i.outs, i.where)]
            tested.add(source)
    if tested:
        replace(flat, code, tested)


def _tests_zero(call: Call) -> bool:
    """Return True if a call's result marks the nonzero elements of its first argument."""
    facts = facts_of(call.op)
    if facts.casts:
        return call.outs[0].dtype is DType.BOOL
    return facts.tests_zero is not None and facts.tests_zero(operands(call))


def _is_int(v: Var) -> bool:
    return v.dtype is not None and not v.dtype.is_float
