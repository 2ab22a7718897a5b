"""Masks that are products: whether an int64 product is 0 is asked of its factors, on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.exporting import export

import ptegpu
from ptegpu.compiler.int64 import replace_zero_tests
from ptegpu.dtypes import DType
from ptegpu.graph.flat import FlatMethod
from ptegpu.plan.method import Call, Host, Instruction, Operand, Var

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
CAST, MUL = "aten._to_copy.default", "aten.mul.Tensor"


def var(name: str, dtype: DType = I64) -> Var:
    return Var(name, dtype, (4,))


def call(op: str, *args: Operand, out: Var) -> Call:
    return Call(op, args, (out,), op)


def operators(code: list[Instruction], *outputs: Var) -> list[str]:
    inputs = {v for i in code if isinstance(i, Call) for v in i.args if isinstance(v, Var) and v.kind == "input"}
    linear = FlatMethod("forward", list(inputs), list(outputs), code)
    replace_zero_tests(linear)
    return [i.op for i in linear.code if isinstance(i, Call)]


def test_a_product_that_is_only_asked_whether_it_is_0_is_not_computed() -> None:
    a, b, product, mask = Var("a", I64, (4,), kind="input"), var("b"), var("product"), var("mask", BOOL)
    moved = call("aten.unsqueeze_copy.default", a, 0, out=b)
    multiplied = call(MUL, a, b, out=product)
    zero_test = call(CAST, product, out=mask)
    assert [moved.op, "aten.logical_and.default"] == operators([moved, multiplied, zero_test], mask)
    also = call("aten.ne.Scalar", product, 0, out=mask)
    assert [moved.op, "aten.logical_and.default"] == operators([moved, multiplied, also], mask)
    assert [moved.op, MUL, "aten.logical_and.default"] == operators([moved, multiplied, zero_test], mask, product)


@pytest.mark.parametrize("what", ["computed", "of floats", "compared with another number", "a float's int"])
def test_other_products_stay(what: str) -> None:
    a, b, product, mask = Var("a", I64, (4,), kind="input"), var("b"), var("product"), var("mask", BOOL)
    x = Var("x", F32, (4,), kind="input")
    factor = call("aten.neg.default", a, out=b)
    zero_test = call(CAST, product, out=mask)
    if what == "of floats":
        product.dtype = F32
    elif what == "compared with another number":
        factor, zero_test = call("aten.alias_copy.default", a, out=b), call("aten.ne.Scalar", product, 1, out=mask)
    elif what == "a float's int":
        factor = call(CAST, x, out=b)
    assert [factor.op, MUL, zero_test.op] == operators([factor, call(MUL, a, b, out=product), zero_test], mask)


class Masks(torch.nn.Module):
    def forward(self, mask: torch.Tensor) -> torch.Tensor:  # (T,) → (T, T)
        return (mask[:, None] * mask).bool().float() + 1


def test_products_beyond_32_bits_are_not_0() -> None:
    with ptegpu.load(export(Masks(), (torch.ones(5, dtype=torch.long),), delegate=False)) as program:
        assert not any(isinstance(i, Host) for i in program.method("forward")._method.items)
        mask = np.array([0, 1, 1 << 16, -(1 << 30), 3 << 20])
        np.testing.assert_array_equal((mask[:, None] * mask != 0) + np.float32(1), program(mask))
        np.testing.assert_array_equal((mask[:, None] * mask != 0) + np.float32(1), program(mask << 20))
