"""Dimensions and elements that a program names with constants are checked before any size is known."""

from __future__ import annotations

import pytest
from tests.graphs import Sketch

from ptegpu.compiler.partition import check_dims
from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram
from ptegpu.graph.flat import FlatMethod
from ptegpu.plan.method import Call, Operand, Var
from ptegpu.plan.target import Target

SIZE, SELECT = "sym_size.int", "et_vk.select_as_symint.default"
P = Var("input 0", DType.I32, (6, 2), dynamic=True, kind="input")
N = Var("input 1", None, kind="input")
SCALAR = Var("d0.v1", DType.F32)


def checked(op: str, *args: Operand) -> None:
    code = Call(op, args, (Var("v9", None),), f"{op} #4 of delegate 0")
    check_dims(FlatMethod("forward", code=[code]), "m.pte")


@pytest.mark.parametrize(
    "op, args, expected",
    [
        (SIZE, (P, 2), "dimension 2 is out of range for rank 2"),
        (SIZE, (P, -3), "dimension -3 is out of range for rank 2"),
        ("aten.sym_size.int", (P, 10**12), "dimension 1000000000000 is out of range for rank 2"),
        (SIZE, (SCALAR, 0), "dimension 0 is out of range for rank 0"),
        (SELECT, (SCALAR, -1, 0), "dimension -1 is out of range for rank 0"),
        (SELECT, (P, 3, 0), "dimension 3 is out of range for rank 2"),
        (SELECT, (P, 0, 6), "index 6 is out of range for dimension 0 of input 0:int32[6, 2]"),
        (SELECT, (P, 1, -3), "index -3 is out of range for dimension 1 of input 0:int32[6, 2]"),
    ],
)
def test_what_no_size_has_is_refused(op: str, args: tuple[Operand, ...], expected: str) -> None:
    with pytest.raises(InvalidProgram) as error:
        checked(op, *args)
    assert f"m.pte: {op} #4 of delegate 0: {expected}" == str(error.value)


@pytest.mark.parametrize(
    "op, args",
    [(SIZE, (P, -1)), (SELECT, (P, 0, 5)), (SELECT, (P, 0, -6)), (SELECT, (P, 0, N)), (SIZE, (P, N)), ("add", (P, 1))],
)
def test_what_some_size_has_is_left_to_the_call(op: str, args: tuple[Operand, ...]) -> None:
    checked(op, *args)


@pytest.mark.parametrize("index, dynamic, place", [(-1, True, -1), (4, True, 4), (-1, False, 5), (4, False, 4)])
def test_a_position_is_named_by_its_place_at_every_size(index: int, dynamic: bool, place: int) -> None:
    s = Sketch()
    new, at, cache = s.input(1, 2, 2, 8), s.input(6, dtype=DType.I32), s.state(1, 8, 2, 8)
    start = s.node(SELECT, at, 0, index)
    s.tensor("update_cache.default", new, cache, start)
    plan = Planner(s.returns(), Target(), [False, dynamic]).cover().plan()
    assert {f"{at.name}: the position {{}} at [{place}]"} == {b.text for f in plan.families for b in f.bounds}
