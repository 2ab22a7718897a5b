"""Masks that are products: whether an int64 product is 0 is asked of its factors.

A factor that was given has 32 bits on the GPU, and is checked to fit them. A product of two such never wraps in 64
bits, so it is 0 only where one of them is.
"""

from __future__ import annotations

from collections import Counter

from ..graph.linear import Call, Linear, Var
from ..ops import REGISTRY
from ..ops.truth import asks, both, factors
from .order import replace, writes


def ask_factors(linear: Linear) -> None:
    """Replace what asks a product of given values whether it is 0, in place."""
    written = Counter(v for i in linear.code for v in writes(i))
    makers = {c.outs[0]: c for c in linear.code if isinstance(c, Call) and len(c.outs) == 1 and written[c.outs[0]] == 1}
    changed: dict[Call, Call] = {}
    products: set[Var] = set()
    for call in makers.values():
        product = asks(call)
        found = factors(makers[product]) if product in makers and product.kind == "temp" else None
        if product is not None and found is not None and all(_given(v, makers, written) for v in found):
            changed[call] = both(*found, like=call)
            products.add(product)
    if changed:
        replace(linear, [[changed.get(i, i) if isinstance(i, Call) else i] for i in linear.code], products)


def _given(v: Var, makers: dict[Var, Call], written: Counter[Var]) -> bool:
    """Whether its elements are ints of an input."""
    while v in makers and v.dtype is not None and not v.dtype.is_float:
        call = makers[v]
        source = call.args[0] if call.args else None
        if call.op not in REGISTRY or not REGISTRY[call.op].moves or not isinstance(source, Var):
            return False
        v = source
    return v.kind == "input" and not written[v] and v.dtype is not None and not v.dtype.is_float
