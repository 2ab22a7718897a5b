"""Masks that are products: whether an int64 product is 0 is asked of its factors.

A factor that was given has 32 bits on the GPU, and is checked to fit them. A product of two such never wraps in 64
bits, so it is 0 only where one of them is.
"""

from __future__ import annotations

from collections import Counter

from ..graph.flat import FlatMethod
from ..ops import REGISTRY
from ..ops.truth import asks, both, factors
from ..plan.method import Call, Instruction, Var
from .order import replace, writes


def ask_factors(flat: FlatMethod) -> None:
    """Replace what asks a product of given values whether it is 0, in place."""
    written = Counter(v for i in flat.code for v in writes(i))
    given = {v for v in flat.inputs if isinstance(v, Var) and _whole(v) and not written[v]}  # and what is moved of it
    products: dict[Var, tuple[Var, Var]] = {}
    code: list[list[Instruction]] = []
    asked: set[Var] = set()
    for i in flat.code:
        code.append([i])
        if not isinstance(i, Call) or len(i.outs) != 1 or written[i.outs[0]] != 1 or i.outs[0].kind != "temp":
            continue
        source, out, found = i.args[0] if i.args else None, i.outs[0], factors(i)
        if found is not None and given.issuperset(found):
            products[out] = found
        elif source in given and i.op in REGISTRY and REGISTRY[i.op].moves and _whole(out):
            given.add(out)
        elif (product := asks(i)) in products:
            code[-1] = [both(*products[product], like=i)]
            asked.add(product)
    if asked:
        replace(flat, code, asked)


def _whole(v: Var) -> bool:
    return v.dtype is not None and not v.dtype.is_float
