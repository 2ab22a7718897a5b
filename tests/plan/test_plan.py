"""A plan saved and read back is the same plan, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ptegpu.plan.lower import lower
from ptegpu.plan.symbols import Symbols
from tests.gpu import plans
from tests.graphs import Sketch, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram
from ptegpu.graph.graph import Graph
from ptegpu.passes.memory import plan_memory
from ptegpu.plan.plan import Copy, Plan, SymStep
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


PLANS: dict[str, Callable[[], Plan]] = {
    "lowered": lambda: plan_of(everything())[0],
    "add": plans.add,
    "chain": plans.chain,
    "scale": plans.scale,
    "accumulate": lambda: plans.accumulate(np.ones(20, np.float32).tobytes()),
    "fill": lambda: plans.fill(20, (2, 3)),
    "empty": lambda: Plan("empty", (), (), (), (), (), (), b""),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_survives_the_round_trip(name: str) -> None:
    plan = PLANS[name]()
    text, binary = plan.to_json()
    back = Plan.from_json(text, binary)
    assert plan == back
    assert (text, binary) == back.to_json()


def test_a_lowered_plan_has_something_of_everything() -> None:
    plan = PLANS["lowered"]()
    assert {"input", "temp", "constant", "state", "params", "syms"} == {b.role for b in plan.buffers}
    assert plan.copies and plan.syms and plan.sym_outputs and len(plan.blobs) == 2


def test_blobs_and_parameters_are_aligned_in_the_binary() -> None:
    plan = replace(plans.chain(), params=b"abc", blobs=(b"x" * 5, memoryview(b"y" * 17), b""))
    text, binary = plan.to_json()
    document = json.loads(text)
    assert [0, 3] == document["params"]
    assert [[16, 5], [32, 17], [64, 0]] == document["blobs"]
    assert b"abc" + bytes(13) + b"x" * 5 + bytes(11) + b"y" * 17 + bytes(15) == binary


def test_the_blobs_of_a_plan_read_back_are_views_on_its_binary() -> None:
    text, binary = plans.chain().to_json()
    (blob,) = Plan.from_json(text, binary).blobs
    assert isinstance(blob, memoryview) and blob.obj is binary


def test_plans_are_equal_by_what_they_hold() -> None:
    plan = plans.accumulate(b"\1" * 80)
    assert plan == plans.accumulate(b"\1" * 80)
    assert plan != plans.accumulate(b"\2" * 80)
    assert plan != replace(plan, name="other")
    assert plan != replace(plan, copies=(Copy(2, 1, 76),))
    assert plan != replace(plan, syms=(SymStep(0, "const", (1,)),))


def test_one_graph_lowered_twice_gives_the_same_bytes() -> None:
    graph = everything()
    target, symbols = Target(), Symbols(graph)
    memory = plan_memory(graph, target)
    first = lower(graph, memory, target, symbols)
    second = lower(graph, memory, target, symbols)
    assert first.to_json() == second.to_json()
    assert first.to_json() == plan_of(everything())[0].to_json()


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the field at a path such as `buffers.0.role`; deletes it where the value is ... itself."""

    def apply(document: dict[str, Any]) -> None:
        *way, last = (int(p) if p.isdigit() else p for p in path.split("."))
        place: Any = document
        for step in way:
            place = place[step]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return apply


DAMAGED = [
    ("format", "other", "not a ptegpu plan of version 1"),
    ("version", 2, "not a ptegpu plan of version 1"),
    ("kernels", ..., "the plan is damaged: kernels missing"),
    ("name", 3, "the plan is damaged: name is 3, no str"),
    ("buffers", {}, "the plan is damaged: buffers is not a list"),
    ("buffers.0.nbytes", "80", "the plan is damaged: buffers[0].nbytes is '80', no int"),
    ("buffers.0.nbytes", True, "the plan is damaged: buffers[0].nbytes is True, no int"),
    (
        "buffers.0.role",
        "tmp",
        "the plan is damaged: buffers[0].role is 'tmp', not one of input, temp, constant, state, params, syms",
    ),
    ("buffers.0.extra", 1, "the plan is damaged: buffers[0] does not have the fields name, nbytes, role, blob"),
    ("buffers.1.blob", 1, "the plan is damaged: buffers[1].blob is 1, there are 1"),
    ("kernels.0.wgsl", None, "the plan is damaged: kernels[0].wgsl is None, no str"),
    ("dispatches.0.kernel", 7, "the plan is damaged: dispatches[0].kernel is 7, there are 1"),
    ("dispatches.0.grid", [1, 2, 3], "the plan is damaged: dispatches[0].grid is not a list of 2"),
    ("dispatches.2.bindings.0.buffer", -1, "the plan is damaged: dispatches[2].bindings[0].buffer is -1, there are 5"),
    ("outputs.1.buffer", 5, "the plan is damaged: outputs[1].buffer is 5, there are 5"),
    ("inputs.0.shape", 20, "the plan is damaged: inputs[0].shape is not a list"),
    ("inputs.0.shape.0", 1.5, "the plan is damaged: inputs[0].shape[0] is 1.5, no int"),
    ("blobs.0", [0, 81], "the plan's bytes 0…81 are not in its binary of 80"),
    ("blobs.0", [-4, 4], "the plan's bytes -4…0 are not in its binary of 80"),
    ("blobs.0", [8, -4], "the plan's bytes 8…4 are not in its binary of 80"),
    ("params", [0], "the plan is damaged: params is not a list of 2"),
]


@pytest.mark.parametrize("path, value, expected", DAMAGED, ids=[f"{p}={v}" for p, v, _ in DAMAGED])
def test_damage_is_named(path: str, value: Any, expected: str) -> None:
    text, binary = plans.chain().to_json()
    document = json.loads(text)
    change(path, value)(document)
    with pytest.raises(InvalidProgram) as error:
        Plan.from_json(json.dumps(document), binary)
    assert expected == str(error.value)


def test_an_unknown_dtype_lists_those_there_are() -> None:
    text, binary = plans.chain().to_json()
    with pytest.raises(InvalidProgram) as error:
        Plan.from_json(text.replace('"dtype":"float32"', '"dtype":"float8"', 1), binary)
    known = "bool, uint8, int8, int16, int32, int64, uint16, uint32, uint64, float16, bfloat16, float32, float64"
    assert f"the plan is damaged: inputs[0].dtype is 'float8', not one of {known}" == str(error.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "the plan is damaged: no JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"format"', "the plan is damaged: no JSON: Expecting ':' delimiter: line 1 column 10 (char 9)"),
        ("[]", "not a ptegpu plan of version 1"),
        ("null", "not a ptegpu plan of version 1"),
        ("{}", "not a ptegpu plan of version 1"),
    ],
)
def test_text_that_is_no_plan(text: str, expected: str) -> None:
    with pytest.raises(InvalidProgram) as error:
        Plan.from_json(text, b"")
    assert expected == str(error.value)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"^the plan is damaged: no JSON: maximum recursion depth exceeded"):
        Plan.from_json("[" * 200_000, b"")


def test_a_short_binary_is_named() -> None:
    text, binary = plans.chain().to_json()
    with pytest.raises(InvalidProgram) as error:
        Plan.from_json(text, binary[:20])
    assert "the plan's bytes 0…80 are not in its binary of 20" == str(error.value)
