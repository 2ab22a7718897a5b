"""Calls appended to a method: they join its plan, add inputs and replace outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.exporting import export

import ptegpu
from ptegpu.compiler.append import Tail
from ptegpu.dtypes import DType
from ptegpu.errors import UnsupportedProgram
from ptegpu.graph.linear import Var


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x - 1


X = torch.arange(12.0).reshape(3, 4)
PTE = export(Twice(), (X,))


def test_outputs_are_replaced_and_join_the_plan() -> None:
    def totals(tail: Tail) -> None:
        doubled = tail.outputs[0]
        assert isinstance(doubled, Var) and (DType.F32, (3, 4)) == (doubled.dtype, doubled.sizes)
        tail.outputs = [*tail.call("aten.sum.dim_IntList", doubled, (1,), False, None, gives=[(DType.F32, (3,))])]

    with ptegpu.load(PTE, append={"forward": totals}) as program:
        np.testing.assert_allclose(program(X.numpy()), (X * 2).sum(1).numpy())
        (plan,) = program.method("forward").plans
        assert [(3,)] == [port.shape for port in plan.outputs]
        assert not any("sub" in d.label for d in plan.dispatches)  # what nobody reads is not computed


def test_inputs_are_added_tensors_and_ints() -> None:
    def shifted(tail: Tail) -> None:
        shift, axis = tail.input("shift", DType.F32, (8, 4), dynamic=True), tail.input("axis")
        (added,) = tail.call("aten.cat.default", (tail.outputs[1], shift), 0, gives=[(DType.F32, (11, 4))])
        (summed,) = tail.call("aten.cumsum.default", added, axis, None, gives=[(DType.F32, (11, 4))])
        tail.outputs.append(summed)

    with ptegpu.load(PTE, append={"forward": shifted}) as program:
        for rows, axis in ((2, 0), (5, 1), (2, 1)):
            extra = np.ones((rows, 4), np.float32)
            *own, got = program(X.numpy(), extra, axis)
            np.testing.assert_allclose(own, [X * 2, X - 1])
            np.testing.assert_allclose(got, np.cumsum(np.concatenate([X.numpy() - 1, extra]), axis))


def test_an_operator_that_is_not_there_is_named() -> None:
    def wrong(tail: Tail) -> None:
        tail.call("my.own.default", tail.outputs[0], gives=[(DType.F32, (3, 4))])

    with pytest.raises(UnsupportedProgram) as error:
        ptegpu.load(PTE, append={"forward": wrong})
    expected = "method forward uses operators that ptegpu does not have:\n     1 × my.own.default(float32[3, 4])"
    assert expected == str(error.value)


def test_a_method_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError) as error:
        ptegpu.load(PTE, append={"decode": lambda tail: None})
    assert "no method 'decode'; the program has forward" == error.value.args[0]
