"""The contents of plans: every kind of record, equality by contents, determinism; and plans written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.gpu import plans
from tests.graphs import Sketch, plan_of

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph
from ptegpu.plan.plan import Choice, Copy, Input, Plan, fixed
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import Target


def everything() -> Graph:
    """A constant, a state that is written back, a symbolic int, a packed dtype, two outputs."""
    s = Sketch("everything")
    x, k = s.input(3, 8), s.sym(1)
    old = s.state(8, data=np.arange(8, dtype=np.float32))
    row = s.tensor("aten.select_copy.int", x, 0, k)
    new = s.tensor("aten.add.Tensor", old, row, 2)
    big = s.tensor("aten.gt.Tensor", new, s.constant(np.ones(8, np.float32)), dtype=DType.BOOL)
    s.graph.writebacks.append((old, new))
    return s.returns(new, big, s.node("add", k, 1))


def test_a_plan_has_something_of_everything() -> None:
    plan, _ = plan_of(everything())
    assert {"input", "temp", "constant", "state", "params", "syms"} == {b.role for b in plan.buffers}
    (family,) = plan.families
    assert plan.copies and plan.rows and family.words and len(family.outputs) == 3 and len(plan.blobs) == 2


def test_plans_are_equal_by_what_they_hold() -> None:
    plan = plans.accumulate(b"\1" * 80)
    assert plan == plans.accumulate(b"\1" * 80)
    assert plan != plans.accumulate(b"\2" * 80)
    assert plan != replace(plan, name="other")
    assert plan != replace(plan, copies=(Copy(2, 1, 76),))
    assert plan != replace(plan, rows=(("const", 1, 0),))
    assert plan != replace(plan, families=(replace(plan.families[0], words=(1,)),))


def test_one_graph_planned_twice_gives_the_same_plan() -> None:
    graph = everything()
    first = Planner(graph, Target()).cover().plan()
    assert first == Planner(graph, Target()).cover().plan()
    assert first == plan_of(everything())[0]
    dynamic = [Planner(everything(), Target(), [True, True]).cover().plan() for _ in range(2)]
    assert dynamic[0] == dynamic[1] != first


def test_a_plan_by_hand_is_one_family_of_single_choices() -> None:
    plan = plans.scale((2.0, 3.0))
    (family,) = plan.families
    assert ((Choice((), plan.dispatches[:1]),), (Choice((), plan.dispatches[1:]),)) == family.steps
    assert ((), ()) == (family.guards, plan.rows)
    assert (Input("x", 0, DType.F32, (plans.N,)),) == plan.inputs
    assert plan == plan_at(plan, [(plans.N,)], lambda *_: 0)
    assert Plan("empty", (), (), (), fixed("empty", (), (), ()).families) == fixed("empty", (), (), ())


def test_what_differs_between_sizes_is_no_single_list() -> None:
    s = Sketch()
    x = s.input(8, 64)
    y = s.tensor("aten.mm.default", x, s.constant(np.ones((64, 12), np.float32)))
    plan = Planner(s.returns(y), Target(), [True]).cover().plan()
    with pytest.raises(ValueError):
        _ = plan.dispatches
    assert (3, 12) == plan_at(plan, [(3, 64)], lambda *_: 0).outputs[0].shape
    with pytest.raises(LookupError) as error:
        plan_at(plan, [(3, 63)], lambda *_: 0)
    assert "plan g does not hold for [(3, 63)]" == str(error.value)
