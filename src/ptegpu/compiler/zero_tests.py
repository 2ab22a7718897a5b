"""Masks that are products: whether an int64 product is 0 is asked of its factors.

A factor that was given has 32 bits on the GPU, and is checked to fit them. A product of two such never wraps in 64
bits, so it is 0 only where one of them is.
"""

from __future__ import annotations

from collections import Counter

from ..dtypes import DType
from ..graph.flat import FlatMethod
from ..ops.elementwise import AND
from ..ops.lookup import facts_of, operands
from ..plan.method import Call, Instruction, Var
from .order import replace, writes


def ask_factors(flat: FlatMethod) -> None:
    """Replace what asks a product of given values whether it is 0, in place."""
    written = Counter(v for i in flat.code for v in writes(i))
    given = {v for v in flat.inputs if isinstance(v, Var) and _whole(v) and not written[v]}  # and what is moved of it
    products: dict[Var, tuple[Var, ...]] = {}
    code: list[list[Instruction]] = []
    asked: set[Var] = set()
    for i in flat.code:
        code.append([i])
        if not isinstance(i, Call) or len(i.outs) != 1 or written[i.outs[0]] != 1 or i.outs[0].kind != "temp":
            continue
        source, out, facts = next((v for v in i.args[:1] if isinstance(v, Var)), None), i.outs[0], facts_of(i.op)
        factors = tuple(v for v in i.args if isinstance(v, Var) and v.dtype is DType.I64)
        if facts.multiplies and out.dtype is DType.I64 and len(factors) == len(i.args) and given.issuperset(factors):
            products[out] = factors
        elif source in given and facts.moves and _whole(out):
            given.add(out)
        elif source is not None and source in products and _tests_zero(i):
            code[-1] = [Call(AND, products[source], i.outs, i.where)]
            asked.add(source)
    if asked:
        replace(flat, code, asked)


def _tests_zero(call: Call) -> bool:
    """Return whether a call says of each element of its first argument whether it is not 0."""
    facts = facts_of(call.op)
    if facts.casts:
        return call.outs[0].dtype is DType.BOOL
    return facts.tests_zero is not None and facts.tests_zero(operands(call))


def _whole(v: Var) -> bool:
    return v.dtype is not None and not v.dtype.is_float
