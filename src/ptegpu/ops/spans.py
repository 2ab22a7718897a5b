"""The range of int64 values: the GPU computes, exactly, what provably fits 32 bits.

A span is the smallest and the largest value that a tensor of ints, or an int, can have in any call. Sizes count at
their maximum. A value without bounds has no span, and int64 arithmetic on it stays on the host.

Operators declare a rule, `@op(…, span=summed)`, from operands by name to the span of their first result. Instead they
may name the parameters whose elements it has (`elements=`), and the result that holds positions (`places=`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from ..dtypes import DType
from ..plan.method import Operand, Var

Span: TypeAlias = tuple[int, int]
Operands: TypeAlias = Mapping[str, Operand]  # by the names of parameters
Of = Callable[[Operand], Span | None]
Rule = Callable[[Operands, Of], Span | None]

INT32: Span = (-(2**31), 2**31 - 1)
INT64: Span = (-(2**63), 2**63 - 1)
BOOL: Span = (0, 1)


def fits(span: Span | None) -> bool:
    """Return whether the span is within 32 bits."""
    return span is not None and span[0] >= INT32[0] and span[1] <= INT32[1]


def spans(rule: Rule | None, places: int | None, a: Operands, outs: Sequence[Var], of: Of) -> list[Span | None]:
    """Return the spans of a call's results; `of` gives those of its operands, which fit the operator's schema."""
    first = rule(a, lambda operand: _representable(of(operand), outs[0])) if rule else None
    return [_positions(a) if k == places else _declared(first, out) for k, out in enumerate(outs)]


def of_dtype(dtype: DType | None) -> Span | None:
    """Return the range of an int type of at most 32 bits, or of bool."""
    if dtype is DType.BOOL:
        return BOOL
    if dtype is None or dtype.is_float or dtype in (DType.I64, DType.U64):
        return None
    return int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)


def _declared(span: Span | None, out: Var) -> Span | None:
    """Return the span in the type of the result; values that it cannot hold wrap around."""
    if (span := _representable(span, out)) is not None:
        return span if out.dtype is None or not out.dtype.is_float else None
    return of_dtype(out.dtype)


def _representable(span: Span | None, out: Var) -> Span | None:
    """Return the span if the type of the result, which may be narrower than a scalar's, can hold it."""
    low, high = of_dtype(out.dtype) or INT64
    return span if span is not None and low <= span[0] and span[1] <= high else None


def _first(a: Operands) -> tuple[int, ...]:
    operand = next(iter(a.values()))
    return operand.sizes if isinstance(operand, Var) else ()


def _positions(a: Operands) -> Span:
    """Return the span of positions of elements: in any dimension, or flat."""
    return 0, max(math.prod(_first(a)) - 1, 0)


def _corners(function: Callable[[int, int], int], a: Span | None, b: Span | None) -> Span | None:
    if a is None or b is None:
        return None
    ends = [function(x, y) for x, y in product(a, b)]
    return min(ends), max(ends)


def _union(spans: Iterable[Span | None]) -> Span | None:
    bounds: list[Span] = []
    for span in spans:
        if span is None:
            return None
        bounds.append(span)
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None


# The rules that operators declare.


def elements(*names: str) -> Rule:
    """Return the rule of a result whose elements come from these parameters, or from the tensors in their lists."""

    def rule(a: Operands, of: Of) -> Span | None:
        sources = [a[name] for name in names]
        return _union(of(x) for s in sources for x in (s if isinstance(s, tuple) else (s,)))

    return rule


def both(function: Callable[[int, int], int]) -> Rule:
    """Return the rule of a function of two operands whose extremes lie at the ends of their spans."""
    return lambda a, of: _corners(function, *map(of, a.values()))


def scaled(sign: int) -> Rule:
    """Return the rule of a sum (1) or a difference (-1) whose second operand is multiplied by `alpha`."""

    def rule(a: Operands, of: Of) -> Span | None:
        x, y, alpha = map(of, a.values())
        return _corners(lambda x, y: x + sign * y, x, _corners(lambda y, alpha: y * alpha, y, alpha))

    return rule


def divided(a: Operands, of: Of) -> Span | None:
    """Bound a quotient that is rounded down or, by its mode, towards zero."""
    x, by, *_ = map(of, a.values())
    mode = a.get("rounding_mode", "floor")
    if by is None or by[0] <= 0 <= by[1] or mode not in ("floor", "trunc"):
        return None
    down = _corners(lambda x, y: x // y, x, by)
    return _union([down, (0, 0)]) if mode == "trunc" else down


def remainder(a: Operands, of: Of) -> Span | None:
    """Bound a remainder, which has the sign of the divisor, for any dividend."""
    _, by = map(of, a.values())
    if by is None or by[0] <= 0 <= by[1]:
        return None
    return (0, by[1] - 1) if by[0] > 0 else (by[0] + 1, 0)


def negated(a: Operands, of: Of) -> Span | None:
    x = of(a["x"])
    return x and (-x[1], -x[0])


def absolute(a: Operands, of: Of) -> Span | None:
    x = of(a["x"])
    return x and (0 if x[0] <= 0 <= x[1] else min(map(abs, x)), max(map(abs, x)))


def clamped(a: Operands, of: Of) -> Span | None:
    bounds = a["low"], a["high"]
    low, high = (None if b is None else of(b) for b in bounds)
    if any(span is None and b is not None for b, span in zip(bounds, (low, high), strict=True)):
        return None
    x = of(a["x"])
    if low and high:
        return min(low[0], high[0]), high[1]  # the upper bound wins where they cross
    if x and low:
        return max(x[0], low[0]), max(x[1], low[1])
    return (min(x[0], high[0]), min(x[1], high[1])) if x and high else x


def summed(a: Operands, of: Of) -> Span | None:
    """Bound sums over any number of a tensor's elements, including none."""
    x, n = of(a["x"]), math.prod(_first(a))
    return x and (min(0, x[0] * n), max(0, x[1] * n))


def stepped(a: Operands, of: Of) -> Span | None:
    return _union([of(a.get("start", 0)), of(a["end"]), (0, 0)])


def size(a: Operands, of: Of) -> Span | None:
    return 0, max(_first(a), default=1)


def numel(a: Operands, of: Of) -> Span | None:
    return 0, math.prod(_first(a))
