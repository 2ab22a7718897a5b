"""Values that the host computes before the GPU starts, at load or per size, and the order of the other calls."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from ptegpu.compiler.order import arrange, reads, writes
from ptegpu.compiler.partition import HostStep, Stretch, cut, places_of
from ptegpu.dtypes import DType
from ptegpu.graph.flat import FlatMethod
from ptegpu.plan.method import Call, Instruction, Jump, Move, Operand, Var

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
COUNT = "aten.nonzero.default"  # only the host has it
BIG = 2**40


def var(name: str, dtype: DType | None = F32, *sizes: int, data: np.ndarray | None = None) -> Var:
    return Var(name, dtype, sizes or (4,), kind="temp" if data is None else "constant", data=data)


def given(name: str, dtype: DType | None = F32, *sizes: int, dynamic: bool = True) -> Var:
    return Var(name, dtype, sizes or (4,), dynamic, kind="input")


def call(op: str, *args: Operand, out: Var) -> Call:
    return Call(op, args, (out,), op)


def shown(linear: FlatMethod) -> str:
    """Return the results in order: a stretch in brackets, those that depend on sizes only with a star."""
    items, unsupported = cut(linear)
    assert not unsupported
    text = []
    for item in items:
        if isinstance(item, Stretch):
            text.append(f"[{' '.join(c.outs[0].name for c in item.calls)}]")
        else:
            written = writes(item.instruction)
            text.append((written[0].name if written else "jump") + "*" * item.by_size)
    return " ".join(text)


def test_int64_arithmetic_on_constants_is_done_at_load() -> None:
    steps, table = var("steps", I64), var("table", I64)
    code: list[Instruction] = [
        call("aten.arange.start_step", 0, 4, 1, out=steps),
        call("aten.mul.Scalar", steps, BIG, out=table),
        call("aten.index.Tensor", var("x"), (table,), out=var("y")),
    ]
    assert "[y]" == shown(FlatMethod("forward", [], [], code))
    assert "constant" == table.kind
    np.testing.assert_array_equal([0, BIG, 2 * BIG, 3 * BIG], table.data)


def test_what_the_gpu_serves_alone_is_left_to_it() -> None:
    code: list[Instruction] = [call("aten.arange.start_step", 0, 4, 1, out=var("steps", I64))]
    assert "[steps]" == shown(FlatMethod("forward", [], [], code))


def test_what_depends_on_sizes_runs_first_and_is_remembered() -> None:
    x, n, steps, table = given("x"), var("n", None), var("steps", I64), var("table", I64)
    y = var("y")
    code: list[Instruction] = [
        call("aten.exp.default", x, out=y),
        call("aten.sym_size.int", x, 0, out=n),
        call("aten.arange.start_step", 0, n, 1, out=steps),
        call("aten.mul.Scalar", steps, BIG, out=table),
        call("aten.index.Tensor", y, (table,), out=var("z")),
    ]
    assert "n* steps* table* [y z]" == shown(FlatMethod("forward", [x], [], code))


def test_ints_that_the_caller_gave_go_first() -> None:
    ids, x, y, moved = given("ids", I64), given("x"), var("y"), var("moved", I64)
    code: list[Instruction] = [
        call("aten.exp.default", x, out=y),
        call("aten.add.Scalar", ids, 1, out=moved),
        call("aten.index.Tensor", y, (moved,), out=var("z")),
    ]
    assert "moved [y z]" == shown(FlatMethod("forward", [ids, x], [], code))


def test_the_host_does_not_take_float_arithmetic_from_the_gpu() -> None:
    """The host could also compute `y` before the run, but that is left to the GPU."""
    x, y, where = given("x"), var("y"), var("where", I64, 4, 1)
    code: list[Instruction] = [
        call("aten.exp.default", x, out=y),
        call(COUNT, y, out=where),
        call("aten.abs.default", y, out=var("z")),
        call("aten.index.Tensor", y, (where,), out=var("w")),
    ]
    assert "[y z] where [w]" == shown(FlatMethod("forward", [x], [], code))


def test_random_numbers_are_made_anew_in_every_call() -> None:
    code: list[Instruction] = [call("aten.rand.default", (4,), out=var("r"))]
    assert "r" == shown(FlatMethod("forward", [], [], code))


def test_a_state_is_not_constant() -> None:
    count = Var("count", I64, (1,), kind="state", data=np.array([3]))
    more = var("more", I64, 1)
    code: list[Instruction] = [call("aten.add.Scalar", count, 1, out=more), Move(more, count)]
    assert "more count" == shown(FlatMethod("forward", [], [], code))


def test_a_result_that_is_written_twice_is_no_constant() -> None:
    out, flag = var("out", I64), given("flag", BOOL, 1)
    two, three = var("two", I64, data=np.full(4, 2)), var("three", I64, data=np.full(4, 3))
    code: list[Instruction] = [
        call("aten.mul.Tensor", two, two, out=out),
        Jump(flag, 3),
        call("aten.mul.Tensor", three, three, out=out),
    ]
    linear = FlatMethod("forward", [flag], [out], code)
    assert "out jump out" == shown(linear)
    assert "temp" == out.kind


def test_branches_go_where_they_went_when_calls_before_them_are_folded() -> None:
    flag, x, table = given("flag", BOOL, 1), given("x"), var("table", I64)
    steps, y = var("steps", I64), var("y")
    code: list[Instruction] = [
        call("aten.arange.start_step", 0, 4, 1, out=steps),
        call("aten.mul.Scalar", steps, BIG, out=table),
        Jump(flag, 4),
        call("aten.exp.default", x, out=y),
        call("aten.abs.default", x, out=var("z")),
        Jump(flag, 6),
    ]
    linear = FlatMethod("forward", [flag, x], [], code)
    assert "jump [y] [z] jump" == shown(linear)
    assert [2, 4] == [i.target for i in linear.code if isinstance(i, Jump)]


def test_a_call_that_fails_on_constants_fails_when_it_runs() -> None:
    code: list[Instruction] = [
        call("aten.full.default", (-1,), 0, out=var("y", I64)),
        call(COUNT, var("x"), out=var("z")),
    ]
    places, _ = arrange(linear := FlatMethod("forward", [], [], code), [False, False])
    assert [False, False] == places and 2 == len(linear.code)


def test_a_result_too_large_to_keep_is_not_folded() -> None:
    huge = var("huge", I64, 1 << 14, 1 << 13)
    code: list[Instruction] = [
        call("aten.full.default", huge.sizes, 7, out=huge),
        call("aten.mul.Scalar", huge, BIG, out=var("y", I64)),
    ]
    cut(linear := FlatMethod("forward", [], [], code))
    assert 2 == len(linear.code) and huge.data is None


def symbolic(code: list[Instruction], slots: list[Var]) -> dict[Var, int]:
    """Return a number for each slot that identifies the instructions and operands it was computed from."""
    env = {v: hash(v.name) for v in slots}
    for i in code:
        digest = hash((getattr(i, "where", "move"), *(env[v] for v in reads(i))))
        env.update({v: hash((digest, n)) for n, v in enumerate(writes(i))})
    return env


def turns(places: list[bool]) -> int:
    return sum(a != b for a, b in pairwise(places))


@pytest.mark.parametrize("seed", range(40))
def test_any_order_computes_the_same(seed: int) -> None:
    rng = random.Random(seed)
    slots = [var(f"s{k}", rng.choice([F32, I64])) for k in range(8)]
    for v in slots:  # read before they are written
        v.kind = "state"
    code: list[Instruction] = []
    for k in range(30):
        a, b, out = rng.choice(slots), rng.choice(slots), rng.choice(slots)
        op = rng.choice(["aten.add.Tensor", "aten.exp.default", COUNT, "move"])
        args = (a, b, 1) if op == "aten.add.Tensor" else (a,)
        code.append(Move(a, out) if op == "move" else Call(op, args, (out,), f"{op} #{k}"))
    before = list(code)
    linear = FlatMethod("forward", [], list(slots), code)
    on_gpu = places_of(linear)
    places, _ = arrange(linear, on_gpu)
    assert sorted(map(repr, before)) == sorted(map(repr, linear.code))
    assert symbolic(before, slots) == symbolic(linear.code, slots)
    assert dict(zip(map(id, before), on_gpu)) == dict(zip(map(id, linear.code), places))
    assert turns(places) <= turns(on_gpu)


def test_items_say_which_of_them_depend_on_sizes() -> None:
    x, n = given("x"), var("n", None)
    code: list[Instruction] = [
        call("aten.sym_size.int", x, 0, out=n),
        call("aten.arange.start_step", 0, n, 1, out=(steps := var("steps", I64))),
        call("aten.mul.Scalar", steps, BIG, out=var("y", I64)),
    ]
    items, _ = cut(FlatMethod("forward", [x], [], code))
    assert [True, True, True] == [isinstance(i, HostStep) and i.by_size for i in items]


def test_what_needs_a_result_that_could_not_be_folded_is_not_folded() -> None:
    """The result has three of four elements: it is smaller than declared."""
    mask, table = var("mask", BOOL, data=np.array([True, False, True, True])), var("table", I64, 4, 1)
    where, n, twice = var("where", I64, 4, 1), var("n", None), var("twice", None)
    code: list[Instruction] = [
        call(COUNT, mask, out=where),
        call("aten.mul.Scalar", where, BIG, out=table),
        call("aten.sym_size.int", where, 0, out=n),
        call("executorch_prim.mul.Scalar", n, 2, out=twice),
    ]
    linear = FlatMethod("forward", [], [table, twice], code)
    assert "where* table* n twice" == shown(linear)
    assert table.data is None and twice.initial is None


def test_steps_on_the_way_to_a_constant_are_not_kept() -> None:
    steps, table, more = var("steps", I64), var("table", I64), var("more", I64)
    code: list[Instruction] = [
        call("aten.arange.start_step", 0, 4, 1, out=steps),
        call("aten.mul.Scalar", steps, BIG, out=table),
        call("aten.add.Scalar", table, 1, out=more),
    ]
    assert "" == shown(FlatMethod("forward", [], [more], code))
    assert steps.data is None and table.data is None and more.data is not None
