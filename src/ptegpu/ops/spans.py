"""The range of int64 values: what provably fits 32 bits is computed on the GPU, exactly.

A span is the smallest and the largest value that a tensor of ints, or an int, can have in any call. Sizes count at
their maximum. A value that no rule here bounds has no span, and int64 arithmetic on it stays on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import TypeAlias

import numpy as np

from ..dtypes import DType
from ..plan.method import Call, Operand, Var
from .registry import REGISTRY

Span: TypeAlias = tuple[int, int]
Of = Callable[[Operand], Span | None]
Rule = Callable[[Call, Of], Span | None]

INT32: Span = (-(2**31), 2**31 - 1)
INT64: Span = (-(2**63), 2**63 - 1)
BOOL: Span = (0, 1)


def fits(span: Span | None) -> bool:
    """Whether it is within 32 bits."""
    return span is not None and span[0] >= INT32[0] and span[1] <= INT32[1]


def spans(call: Call, of: Of) -> list[Span | None]:
    """Those of a call's results; `of` knows its operands', which fit the operator's schema."""
    definition = REGISTRY.get(call.op)
    rule = RULES.get(call.op) or (_of(0) if definition is not None and definition.moves else None)
    places = PLACES.get(call.op)
    found = rule(call, lambda operand: _held(of(operand), call.outs[0])) if rule else None
    return [_places(call) if k == places else _declared(found, out) for k, out in enumerate(call.outs)]


def of_dtype(dtype: DType | None) -> Span | None:
    """All values of a type of at most 32 bits."""
    if dtype is DType.BOOL:
        return BOOL
    if dtype is None or dtype.is_float or dtype in (DType.I64, DType.U64):
        return None
    return int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)


def _declared(found: Span | None, out: Var) -> Span | None:
    """What its type cannot hold wraps."""
    if (held := _held(found, out)) is not None:
        return held if out.dtype is None or not out.dtype.is_float else None
    return of_dtype(out.dtype)


def _held(operand: Span | None, out: Var) -> Span | None:
    """That of an operand in the type of the result, which may be narrower than a scalar's."""
    whole = of_dtype(out.dtype) or INT64
    return operand if operand is not None and whole[0] <= operand[0] and operand[1] <= whole[1] else None


def _sizes(operand: Operand) -> tuple[int, ...]:
    return operand.sizes if isinstance(operand, Var) else ()


def _places(call: Call) -> Span:
    """Of numbers of elements: in any dimension, or in all of them."""
    return 0, max(math.prod(_sizes(call.args[0])) - 1, 0)


def _corners(function: Callable[[int, int], int], a: Span | None, b: Span | None) -> Span | None:
    if a is None or b is None:
        return None
    found = [function(x, y) for x, y in product(a, b)]
    return min(found), max(found)


def _union(found: Iterable[Span | None]) -> Span | None:
    known = list(found)
    lows, highs = [s[0] for s in known if s], [s[1] for s in known if s]
    return (min(lows), max(highs)) if known and len(lows) == len(known) else None


def _argument(call: Call, of: Of, k: int, default: int) -> Span | None:
    return of(call.args[k]) if k < len(call.args) else (default, default)


def _scaled(sign: int) -> Rule:
    def rule(call: Call, of: Of) -> Span | None:
        by = _corners(lambda x, y: x * y, of(call.args[1]), _argument(call, of, 2, 1))
        return _corners(lambda x, y: x + sign * y, of(call.args[0]), by)

    return rule


def _both(function: Callable[[int, int], int]) -> Rule:
    return lambda call, of: _corners(function, of(call.args[0]), of(call.args[1]))


def _divided(call: Call, of: Of) -> Span | None:
    """Rounded down, or towards zero."""
    by, mode = of(call.args[1]), call.args[2] if len(call.args) > 2 else "floor"
    if by is None or by[0] <= 0 <= by[1] or mode not in ("floor", "trunc"):
        return None
    down = _corners(lambda x, y: x // y, of(call.args[0]), by)
    return _union([down, (0, 0)]) if mode == "trunc" else down


def _remainder(call: Call, of: Of) -> Span | None:
    """It has the sign of the divisor. Of whatever is divided."""
    by = of(call.args[1])
    if by is None or by[0] <= 0 <= by[1]:
        return None
    return (0, by[1] - 1) if by[0] > 0 else (by[0] + 1, 0)


def _negated(call: Call, of: Of) -> Span | None:
    a = of(call.args[0])
    return a and (-a[1], -a[0])


def _absolute(call: Call, of: Of) -> Span | None:
    a = of(call.args[0])
    return a and (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a)))


def _clamped(call: Call, of: Of) -> Span | None:
    bounds = [*call.args[1:3], None, None][:2]
    low, high = (None if b is None else of(b) for b in bounds)
    if any(span is None and b is not None for b, span in zip(bounds, (low, high), strict=True)):
        return None
    a = of(call.args[0])
    if low and high:
        return min(low[0], high[0]), high[1]  # the upper bound wins where they cross
    if a and low:
        return max(a[0], low[0]), max(a[1], low[1])
    return (min(a[0], high[0]), min(a[1], high[1])) if a and high else a


def _summed(call: Call, of: Of) -> Span | None:
    """Also of any part of it, and of nothing."""
    a, n = of(call.args[0]), math.prod(_sizes(call.args[0]))
    return a and (min(0, a[0] * n), max(0, a[1] * n))


def _stepped(call: Call, of: Of) -> Span | None:
    ends = call.args[:1] if call.op == "aten.arange.default" else call.args[:2]
    return _union([*map(of, ends), (0, 0)])


def _of(*positions: int) -> Rule:
    """Elements of some arguments."""
    return lambda call, of: _union(of(call.args[k]) for k in positions)


def _listed(call: Call, of: Of) -> Span | None:
    return _union(map(of, call.args[0])) if isinstance(call.args[0], tuple) else None


def _size(call: Call, of: Of) -> Span | None:
    return 0, max(_sizes(call.args[0]), default=1)


def _numel(call: Call, of: Of) -> Span | None:
    return 0, math.prod(_sizes(call.args[0]))


def _either(*names: str) -> tuple[str, ...]:
    return tuple(f"aten.{n}.{kind}" for n in names for kind in ("Tensor", "Scalar"))


RULES: dict[str, Rule] = {
    **dict.fromkeys(_either("add"), _scaled(1)),
    **dict.fromkeys(_either("sub"), _scaled(-1)),
    **dict.fromkeys(_either("mul"), _both(lambda x, y: x * y)),
    **dict.fromkeys(_either("remainder"), _remainder),
    **dict.fromkeys(("aten.floor_divide.default", "aten.floor_divide.Scalar"), _divided),
    **dict.fromkeys(("aten.div.Tensor_mode", "aten.div.Scalar_mode"), _divided),
    "aten.neg.default": _negated,
    "aten.abs.default": _absolute,
    "aten.minimum.default": _both(min),
    "aten.maximum.default": _both(max),
    "aten.clamp.default": _clamped,
    "aten.clamp.Tensor": _clamped,
    "aten.sum.dim_IntList": _summed,
    "aten.cumsum.default": _summed,
    "aten.arange.default": _stepped,
    "aten.arange.start_step": _stepped,
    "aten.full.default": _of(1),
    "aten.full_like.default": _of(1),
    "aten.scalar_tensor.default": _of(0),
    "aten.where.self": _of(1, 2),
    "aten.cat.default": _listed,
    "aten.stack.default": _listed,
    "aten.gather.default": _of(0),
    "aten.index_select.default": _of(0),
    "aten.index.Tensor": _of(0),
    "ptegpu.latest.default": _of(0, 2),
    "aten.max.dim": _of(0),
    "aten.min.dim": _of(0),
    "aten.topk.default": _of(0),
    "aten.sort.default": _of(0),
    "aten.sort.stable": _of(0),
    **dict.fromkeys(("sym_size.int", "aten.sym_size.int"), _size),
    **dict.fromkeys(("aten.sym_numel.default", "aten.sym_numel"), _numel),
    **dict.fromkeys(("add", "executorch_prim.add.Scalar"), _both(lambda x, y: x + y)),
    **dict.fromkeys(("sub", "executorch_prim.sub.Scalar"), _both(lambda x, y: x - y)),
    **dict.fromkeys(("mul", "executorch_prim.mul.Scalar"), _both(lambda x, y: x * y)),
    **dict.fromkeys(("floordiv", "executorch_prim.floordiv.Scalar"), _divided),
}

PLACES: dict[str, int] = {  # which result has numbers of elements of the first argument
    "aten.argmax.default": 0,
    "aten.argmin.default": 0,
    "aten.argsort.default": 0,
    "aten.max.dim": 1,
    "aten.min.dim": 1,
    "aten.topk.default": 1,
    "aten.sort.default": 1,
    "aten.sort.stable": 1,
    "aten.nonzero.default": 0,
}

CASTS = ("aten._to_copy.default", "aten.to.dtype", "dim_order_ops._to_dim_order_copy.default")

VALUES: dict[str, tuple[int, ...]] = {  # which arguments' elements the results are, if not those of all
    **dict.fromkeys(("aten.gather.default", "aten.index_select.default", "aten.index.Tensor"), (0,)),
    **dict.fromkeys(("aten.topk.default", "aten.sort.default", "aten.sort.stable", "aten.embedding.default"), (0,)),
    **dict.fromkeys(("aten.max.dim", "aten.min.dim", "aten.slice_scatter.default", "aten.select_scatter.int"), (0,)),
    "aten.where.self": (1, 2),
}

SUMS: dict[str, int] = {  # which argument says a dtype of sums and products
    "aten.sum.dim_IntList": 3,
    "aten.sum.default": 1,
    "aten.cumsum.default": 2,
    "aten.prod.dim_int": 3,
}
