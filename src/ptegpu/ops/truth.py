"""Whether products are 0: exact without the product, which may not fit 32 bits."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.method import Call, Var
from .spans import CASTS


def asks(call: Call) -> Var | None:
    """The int64 whose truth a call gives, element by element; None if it gives something else."""
    source = call.args[0] if call.args else None
    if not isinstance(source, Var) or source.dtype is not DType.I64:
        return None
    to_bool = call.op in CASTS and call.outs[0].dtype is DType.BOOL
    return source if to_bool or (call.op == "aten.ne.Scalar" and call.args[1:] == (0,)) else None


def factors(call: Call) -> tuple[Var, Var] | None:
    """The two tensors that a call multiplies; None if it does something else."""
    given = call.args if call.op == "aten.mul.Tensor" else ()
    tensors = [v for v in given if isinstance(v, Var) and v.dtype is DType.I64]
    return (tensors[0], tensors[1]) if len(tensors) == len(given) == 2 else None


def both(a: Var, b: Var, like: Call) -> Call:
    """Whether neither is 0, in place of a call that asked it of their product."""
    return Call("aten.logical_and.default", (a, b), like.outs, like.where)
