"""Spans of int64 values: operands within their spans never give a result outside its span."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptegpu.dtypes import DType
from ptegpu.ops.lookup import facts_of, operands
from ptegpu.ops.spans import INT32, Of, Span, fits, of_dtype, spans
from ptegpu.plan.method import Call, Operand, Var
from ptegpu.portable import PORTABLE, PRIMS, OutSpec, call

SHAPE = (3, 4)
X, Y, LOW, HIGH = (Var(name, DType.I64, SHAPE) for name in ("x", "y", "low", "high"))
INDEX = Var("index", DType.I64, SHAPE)  # into the first dimension, which is shorter
PART, ROW = Var("part", DType.I64, (3, 2)), Var("row", DType.I64, (4,))
N, M = Var("n", None), Var("m", None)

ARGUMENTS: dict[str, list[tuple[Operand, ...]]] = {
    "aten.add.Tensor": [(X, Y), (X, Y, 3), (X, Y, -2)],
    "aten.add.Scalar": [(X, 5, 2), (X, N)],
    "aten.sub.Tensor": [(X, Y), (X, Y, -3)],
    "aten.sub.Scalar": [(X, 5)],
    "aten.mul.Tensor": [(X, Y)],
    "aten.mul.Scalar": [(X, -7)],
    "aten.remainder.Tensor": [(X, Y)],
    "aten.remainder.Scalar": [(X, 6), (X, -6), (X, 0)],
    "aten.floor_divide.default": [(X, Y)],
    "aten.div.Tensor_mode": [(X, Y, "floor"), (X, Y, "trunc")],
    "aten.div.Scalar_mode": [(X, 3, "floor"), (X, -3, "trunc"), (X, 3, None)],
    "aten.neg.default": [(X,)],
    "aten.abs.default": [(X,)],
    "aten.minimum.default": [(X, Y)],
    "aten.maximum.default": [(X, Y)],
    "aten.clamp.default": [(X, -2, 9), (X, None, 4), (X, 4), (X, 9, -2), (X, None, None)],
    "aten.clamp.Tensor": [(X, LOW, HIGH), (X, LOW), (X, None, HIGH)],
    "aten.sum.dim_IntList": [(X, (1,), False), (X, (0, 1), True)],
    "aten.sum.default": [(X,)],
    "aten.cumsum.default": [(X, 1), (X, 0)],
    "aten.arange.default": [(N,), (7,)],
    "aten.arange.start_step": [(2, 9, 2), (9, 2, -3), (N, 30, 1)],
    "aten.full.default": [(SHAPE, -4), (SHAPE, N)],
    "aten.full_like.default": [(X, 11)],
    "aten.scalar_tensor.default": [(N,)],
    "aten.where.self": [(Var("c", DType.BOOL, SHAPE), X, Y)],
    "aten.cat.default": [((X, Y), 0)],
    "aten.stack.default": [((X, Y), 0)],
    "aten.gather.default": [(X, 0, INDEX)],
    "aten.index_select.default": [(X, 0, Var("index", DType.I64, (5,)))],
    "aten.index.Tensor": [(X, (INDEX,))],
    "aten.topk.default": [(X, 2)],
    "aten.sort.default": [(X,)],
    "aten.sort.stable": [(X, False)],
    "aten.kthvalue.default": [(X, 2)],
    "aten.median.dim": [(X, 1)],
    "aten.amax.default": [(X, (1,))],
    "aten.amin.default": [(X,)],
    "aten.max.default": [(X,)],
    "aten.min.default": [(X,)],
    "aten.embedding.default": [(X, INDEX)],
    "aten.slice_scatter.default": [(X, PART, 1, 0, 2)],
    "aten.select_scatter.default": [(X, ROW, 0, 1)],
    "aten.argmax.default": [(X, 1), (X,)],
    "aten.argmin.default": [(X, 0), (X,)],
    "aten.max.dim": [(X, 1)],
    "aten.min.dim": [(X, 0)],
    "aten.nonzero.default": [(X,)],
    "aten.sym_size.int": [(X, 0), (X, 1)],
    "aten.sym_numel.default": [(X,)],
    "executorch_prim.add.Scalar": [(N, M), (N, -3)],
    "executorch_prim.sub.Scalar": [(N, M)],
    "executorch_prim.mul.Scalar": [(N, M)],
    "executorch_prim.floordiv.Scalar": [(N, M), (N, 4)],
    "aten.view_copy.default": [(X, (12,))],
    "aten.permute_copy.default": [(X, (1, 0))],
}
RANGES: list[Span] = [(0, 0), (0, 5), (-3, 4), (-9, -2), (3, 8), (-(2**20), 2**20)]


def spans_of(c: Call, of: Of) -> list[Span | None]:
    facts = facts_of(c.op)
    return spans(facts.span, facts.places, operands(c), c.outs, of)


def test_every_rule_is_tested() -> None:
    rules = {name: facts_of(name) for name in (*PORTABLE, *PRIMS)}
    with_spans = {name for name, rule in rules.items() if (rule.span or rule.places is not None) and not rule.moves}
    aliases = {"add", "sub", "mul", "floordiv", "sym_size.int"}  # names in delegates
    assert with_spans - aliases <= set(ARGUMENTS)


@pytest.mark.parametrize("op", ARGUMENTS)
def test_no_result_is_outside(op: str) -> None:
    rng = np.random.default_rng(0)
    bounded = 0
    for args in ARGUMENTS[op]:
        for a in RANGES:
            for b in RANGES:
                bounded += check(op, args, a, b, rng)
    assert bounded, "nothing is proved"


def check(op: str, args: tuple[Operand, ...], a: Span, b: Span, rng: np.random.Generator) -> bool:
    """Check that random and extreme operands stay within the result's span; return False if it has none."""
    ranges = {X: a, Y: b, PART: b, ROW: b, LOW: (-4, -1), HIGH: (2, 6), N: (max(a[0], 0), max(a[1], 0) % 40), M: b}
    ranges[N] = (min(ranges[N]), max(ranges[N]))

    def of(operand: Operand) -> Span | None:
        if isinstance(operand, Var):
            return ranges.get(operand) or of_dtype(operand.dtype)
        return (operand, operand) if isinstance(operand, int) else None

    def value(operand: Operand) -> Any:
        if isinstance(operand, tuple):
            return [value(o) for o in operand]
        if not isinstance(operand, Var):
            return operand
        low, high = (0, 2) if operand.name == "index" else ranges.get(operand, (0, 1))
        elements = rng.choice([low, high, int(rng.integers(low, high + 1))], operand.sizes)
        return int(elements) if operand.dtype is None else elements.astype(operand.dtype.numpy)

    count = 2 if facts_of(op).places == 1 else 1
    dtype = None if op in PRIMS else DType.I64
    outs = tuple(Var(f"out{k}", dtype, SHAPE) for k in range(count))
    bounds = spans_of(Call(op, args, outs, op), of)
    assert all((s is None) == (bounds[0] is None) for s in bounds)
    if bounds[0] is None:
        return False
    for _ in range(3):
        values = [value(x) for x in args]
        results = [PRIMS[op](*values)] if op in PRIMS else call(op, values, [OutSpec(DType.I64)] * count)
        for span, result in zip(bounds, results, strict=True):
            if np.size(result):
                assert span is not None and span[0] <= np.min(result) and np.max(result) <= span[1], (values, result)
    return True


def test_division_by_what_may_be_zero_has_no_span() -> None:
    for op in ("aten.remainder.Tensor", "aten.floor_divide.default"):
        assert [None] == spans_of(Call(op, (X, Y), (X,), op), {X: (0, 9), Y: (-1, 1)}.get)


def test_a_narrow_result_wraps() -> None:
    narrow = Var("narrow", DType.I32, SHAPE)
    (span,) = spans_of(Call("aten.mul.Tensor", (X, Y), (narrow,), "mul"), {X: (0, 2**20), Y: (0, 2**20)}.get)
    assert INT32 == span and fits(span)


def test_what_int64_cannot_hold_has_no_span() -> None:
    wide = {X: (0, 2**40), Y: (0, 2**40), N: (0, 2**40), M: (0, 2**40)}.get
    assert [None] == spans_of(Call("aten.mul.Tensor", (X, Y), (LOW,), "mul"), wide)
    assert [None] == spans_of(Call("executorch_prim.mul.Scalar", (N, M), (Var("p", None),), "mul"), wide)


@pytest.mark.parametrize("bounds", [(Y,), (None, Y), (LOW, Y), (Y, HIGH)])
def test_a_clamp_to_what_nothing_bounds_has_no_span(bounds: tuple[Operand, ...]) -> None:
    span_of = {X: (0, 5), LOW: (-4, -1), HIGH: (2, 6)}.get
    assert [None] == spans_of(Call("aten.clamp.Tensor", (X, *bounds), (INDEX,), "clamp"), span_of)


def test_a_scalar_wraps_in_a_narrower_result() -> None:
    scalar, narrow = Var("one", DType.I64, ()), Var("narrow", DType.I32, SHAPE)
    span_of = {scalar: (-(2**40), -(2**40)), narrow: (0, 9)}.get
    assert [INT32] == spans_of(Call("aten.maximum.default", (scalar, narrow), (narrow,), "maximum"), span_of)
