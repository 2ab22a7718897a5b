"""Calls appended to a method: they join its plan, add inputs and replace outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.exporting import export

import ptegpu
from ptegpu.compiler.append import Tail
from ptegpu.dtypes import DType
from ptegpu.errors import Closed, UnsupportedProgram
from ptegpu.plan.method import Var


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
        assert not any("sub" in d.label for d in plan.dispatches)  # results that are not read are not computed


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


def test_a_program_beside_another_shares_its_constants() -> None:
    def negated(tail: Tail) -> None:
        tail.outputs = [*tail.call("aten.neg.default", tail.outputs[0], gives=[(DType.F32, (3, 8))])]

    linear = torch.nn.Linear(4, 8)
    file = export(linear, (X,))
    expected = linear(X).detach().numpy()
    program = ptegpu.load(file)
    with ptegpu.load(b"", beside=program, append={"forward": negated}) as other:
        weights = {b.name for b in program.method("forward").plans[0].buffers if b.role == "constant"}
        assert weights and weights == {b.name for b in other.method("forward").plans[0].buffers if b.role == "constant"}
        program.close()  # the other has them still
        np.testing.assert_allclose(other(X.numpy()), -expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(Closed, match="this program was closed; load it again"):
            ptegpu.load(file, beside=program)
    assert 0 == len(other._shared.constants)
