"""The partition of calls: those joined on the GPU, those left on the host, and the end of a stretch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ptegpu.compiler import partition as module
from ptegpu.compiler.partition import HostStep, Stretch, cut, describe, mutates, partition, places_of
from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, UnsupportedProgram
from ptegpu.graph.flat import FlatMethod
from ptegpu.plan.method import Call, Instruction, Jump, Move, Operand, Var

F32, I64, I32, BOOL = DType.F32, DType.I64, DType.I32, DType.BOOL


def var(dtype: DType | None = F32, *sizes: int, data: np.ndarray | None = None) -> Var:
    kind = "temp" if data is None else "constant"
    return Var("v", dtype, sizes or (4,), kind=kind, data=data)


def call(op: str, *args: Operand, out: Var | DType | None = F32) -> Call:
    result = out if isinstance(out, Var) else var(out)
    return Call(op, args, (result,), f"{op} #0")


def places(*code: Instruction, inputs: tuple[Operand, ...] = ()) -> str:
    """Return the items in order: `g` per call on the GPU, a bar between stretches, `h` per instruction on the host."""
    items, _ = cut(FlatMethod("forward", list(inputs), [], list(code)))
    shown = ""
    for before, item in zip([None, *items], items):
        if isinstance(item, Stretch):
            shown += ("|" if isinstance(before, Stretch) else "") + "g" * len(item.calls)
        else:
            shown += "h"
    return shown


@pytest.mark.parametrize(
    "instruction, expected",
    [
        (call("aten.add.Tensor", var(), var(), 1), "g"),
        (call("aten.add.Tensor", var(I32), var(I32), 1, out=I32), "g"),
        (call("aten.add.Tensor", var(I64), var(I64), 1, out=I64), "h"),
        (call("aten.mul.Scalar", var(I64), 3, out=I64), "h"),
        (call("aten.sum.dim_IntList", var(I64), (0,), False, out=I64), "h"),
        (call("aten.cumsum.default", var(I64), 0, out=I64), "h"),
        (call("aten.cumsum.default", var(BOOL), 0, out=I64), "g"),
        (call("aten.cumsum.default", var(I32), 0, out=I64), "h"),
        (call("aten.remainder.Scalar", var(I64), 5, out=I64), "h"),
        (call("aten.remainder.Scalar", var(I32), 5, out=I64), "g"),
        (call("aten.add.Tensor", var(DType.F64), var(DType.F64), 1, out=DType.F64), "h"),
        (call("aten.add.Tensor", var(DType.BF16), var(DType.BF16), 1, out=DType.BF16), "g"),
        (call("aten.add.Tensor", var(DType.I16), var(DType.I16), 1, out=DType.I16), "h"),
    ],
    ids=lambda x: describe(x) if isinstance(x, Call) else None,
)
def test_arithmetic_joins_where_the_gpu_computes_it_exactly(instruction: Call, expected: str) -> None:
    assert expected == places(instruction)


@pytest.mark.parametrize(
    "instruction",
    [
        call("aten.view_copy.default", var(I64), (2, 2), out=I64),
        call("aten.permute_copy.default", var(I64, 2, 2), (1, 0), out=I64),
        call("aten.index.Tensor", var(), (var(I64),)),
        call("aten.embedding.default", var(F32, 4, 2), var(I64)),
        call("aten.cat.default", (var(I64), var(I64)), out=I64),
        call("aten.eq.Scalar", var(I64), 0, out=BOOL),
        call("aten.where.self", var(BOOL), var(I64), var(I64), out=I64),
        call("aten.argmax.default", var(), 0, False, out=I64),
        call("aten._to_copy.default", var(I64)),
        call("aten._to_copy.default", var(I32), out=I64),
    ],
    ids=describe,
)
def test_int64_that_is_only_moved_or_compared_joins(instruction: Call) -> None:
    assert "g" == places(instruction)


def test_a_float_cast_to_int64_stays_on_the_host() -> None:
    """Its values may exceed the range of int32."""
    assert "h" == places(call("aten._to_copy.default", var(), out=I64))
    assert "h" == places(call("dim_order_ops._to_dim_order_copy.default", var(DType.F16), out=I64))


@pytest.mark.parametrize("value, expected", [(2**31 - 1, "g"), (2**31, "h"), (-(2**31), "g"), (-(2**31) - 1, "h")])
def test_a_scalar_or_constant_beyond_int32_stays_on_the_host(value: int, expected: str) -> None:
    assert expected == places(call("aten.eq.Scalar", var(I64), value, out=BOOL))
    constant = var(I64, data=np.array([0, 1, value, 2]))
    assert expected == places(call("aten.eq.Tensor", var(I64), constant, out=BOOL))


def test_what_has_only_a_numpy_kernel_ends_a_stretch() -> None:
    x, y, z = var(), var(), var(I64)
    code = [call("aten.exp.default", x, out=y), call("aten._to_copy.default", y, out=z)]
    compared, indexed = call("aten.eq.Scalar", z, 1), call("aten.index.Tensor", y, (z,))
    assert "ghh" == places(*code, compared)  # int64 that may not fit 32 bits
    assert "ghg" == places(*code, indexed)  # there, such an index is out of range


def test_what_needs_no_result_of_the_host_runs_with_what_came_before() -> None:
    x, y = var(), var()
    code = [call("aten.exp.default", x, out=y), call("aten.nonzero.default", y), call("aten.abs.default", y)]
    assert "ggh" == places(*code)


def test_branches_and_moves_end_a_stretch() -> None:
    x, y, z = var(), var(), var(BOOL)
    code: list[Instruction] = [
        call("aten.exp.default", x),
        call("aten.gt.Scalar", x, 0, out=z),
        Jump(z, 5),
        call("aten.abs.default", x, out=y),
        Move(y, x),
        call("aten.neg.default", x),
    ]
    assert "gghghg" == places(*code)


def test_a_stretch_begins_where_a_jump_lands() -> None:
    flag = var(BOOL)
    relu = call("aten.relu.default", var())
    assert "hg|gg" == places(Jump(flag, 2), relu, relu, relu)


def test_an_item_of_an_input_is_read_before_the_stretch_runs() -> None:
    position, n = var(I64, 1), var(None)
    item = call("et_vk.select_as_symint.default", position, 0, 0, out=n)
    assert "ggg" == places(call("aten.relu.default", var()), item, call("aten.select_copy.int", var(F32, 4, 4), 0, n))


def test_an_item_of_what_was_just_computed_breaks_the_stretch() -> None:
    position, n = var(I32, 1), var(None)
    code = [
        call("aten.relu.default", var()),
        call("aten.abs.default", var(I32), out=position),
        call("et_vk.select_as_symint.default", position, 0, 0, out=n),
        call("aten.select_copy.int", var(F32, 4, 4), 0, n),
    ]
    assert "gghg" == places(*code)


def test_an_item_of_a_state_is_read_by_the_host() -> None:
    count, n = var(I32, 1), var(None)
    count.kind = "state"
    item = call("aten._local_scalar_dense.default", count, out=n)
    assert "hg" == places(item, call("aten.select_copy.int", var(F32, 4, 4), 0, n))


@pytest.mark.parametrize("op", ["aten._local_scalar_dense.default", "aten.sym_size.int", "aten.relu.default"])
def test_a_call_without_arguments_is_refused(op: str) -> None:
    with pytest.raises(InvalidProgram) as error:
        places(call(op, out=var(None) if "relu" not in op else var()))
    assert f"{op}: argument 'x' is missing" in str(error.value)


def test_an_item_of_a_float_is_no_symbolic_int() -> None:
    n = var(None)
    code = [call("et_vk.select_as_symint.default", var(), 0, 0, out=n)]
    assert "h" == places(*code)


def test_sizes_and_arithmetic_on_them_join() -> None:
    x, a, b = var(), var(None), var(None)
    code = [
        call("aten.sym_size.int", x, 0, out=a),
        call("executorch_prim.sub.Scalar", a, 1, out=b),
        call("aten.slice_copy.Tensor", x, 0, 0, b, 1),
    ]
    assert "ggg" == places(*code)


def test_arithmetic_on_floats_stays_on_the_host_with_all_that_reads_it() -> None:
    x, a, b = var(), var(None), var(None)
    code = [
        call("aten._local_scalar_dense.default", x, out=a),
        call("executorch_prim.mul.Scalar", a, 2, out=b),
        call("aten.mul.Scalar", x, b),
    ]
    assert "hhh" == places(*code)
    assert "" == places(call("executorch_prim.mul.Scalar", 0.5, 2, out=b))
    assert 1.0 == b.initial


def test_an_int_input_is_a_symbolic_int() -> None:
    n = var(None)
    assert "g" == places(call("aten.select_copy.int", var(F32, 4, 4), 0, n), inputs=(n,))
    assert "h" == places(call("aten.select_copy.int", var(F32, 4, 4), 0, n))


def test_items_know_their_place_in_the_code() -> None:
    relu = call("aten.relu.default", var())
    jump = Jump(True, 2)
    assert [Stretch(0, [relu]), HostStep(1, jump), Stretch(2, [relu, relu])] == partition(
        FlatMethod("forward", [], [], [relu, jump, relu, relu])
    )


def test_all_operators_that_nothing_serves_are_listed_with_counts() -> None:
    strange = call("aten.strange.default", var(F32, 2, 3), (1, var(None)), None, "mean")
    code = [strange, call("aten.relu.default", var()), strange, call("my.own", var(I64, 5))]
    with pytest.raises(UnsupportedProgram) as error:
        partition(FlatMethod("forward", [], [], code))
    expected = (
        "method forward uses operators that ptegpu does not have:\n"
        "     2 × aten.strange.default(float32[2, 3], [1, int], None, 'mean')\n"
        "     1 × my.own(int64[5])"
    )
    assert expected == str(error.value)


def test_an_operator_that_nobody_has_writes_nothing_in_place() -> None:
    assert () == mutates("aten.strange.default")


def test_a_state_may_have_what_is_not_written_to_it() -> None:
    """It begins beyond 32 bits, whatever it becomes."""
    state = Var("n", I64, (4,), kind="state", data=np.full(4, 2**40))
    best = call("aten.argmax.default", var(), 0, out=state)
    assert [False, True] == places_of(
        FlatMethod("forward", [], [], [call("aten.remainder.Scalar", state, 7, out=I64), best])
    )


def test_the_bits_of_bfloat16_bound_no_value() -> None:
    huge = var(DType.BF16, data=np.full(4, 0x5380, np.uint16))  # 2⁴⁰
    exact = var(I64)
    cast, product = call("aten._to_copy.default", huge, out=exact), call("aten.mul.Tensor", exact, var(BOOL), out=I64)
    assert [False, False] == places_of(FlatMethod("forward", [], [], [cast, product]))


def test_a_chain_that_stays_on_the_host_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once more, to see that nothing changes."""
    calls: list[Call] = []
    real = module.runs_on_gpu
    monkeypatch.setattr(module, "runs_on_gpu", lambda c, facts: calls.append(c) or real(c, facts))
    chain = [var(I64) for _ in range(20)]
    code: list[Instruction] = [call("aten.mul.Tensor", var(I64), var(I64), out=chain[0])]
    code += [call("aten.clone.default", a, out=b) for a, b in pairwise(chain)]
    assert not any(places_of(FlatMethod("forward", [], [], code)))
    assert 2 * len(code) == len(calls)
