"""Methods that run on the host without a GPU, written by hand, and the places that their errors name."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.methods import method_of

from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, InvalidProgram, LimitExceeded
from ptegpu.format import pte
from ptegpu.limits import Budget, Limits
from ptegpu.runtime.method import MethodRunner


def i64(*sizes: int) -> pte.FileTensor:
    return pte.FileTensor(DType.I64, sizes, tuple(range(len(sizes))))


def method(values: list[pte.Value], inputs: list[int], outputs: list[int], *chain: pte.Instruction) -> MethodRunner:
    file_method = pte.FileMethod("forward", tuple(values), tuple(inputs), tuple(outputs), (chain,), (), "", "")
    return method_of(file_method, "model.pte")


def kernel(name: str, *args: int) -> pte.KernelCall:
    return pte.KernelCall(name, args)


def refused(runner: MethodRunner, *inputs: object) -> str:
    with pytest.raises(ExecutionError) as error:
        runner(*inputs)
    return str(error.value)


def quotient() -> MethodRunner:
    """Return a method that computes 7 // the item of a tensor."""
    item = kernel("aten::_local_scalar_dense", 0, 1)
    return method([i64(), 0, 7, 0], [0], [3], item, kernel("executorch_prim::floordiv.Scalar", 2, 1, 3))


def test_scalars_are_computed_on_the_host() -> None:
    assert 3 == quotient()(np.array(2))


def test_division_by_zero_says_where() -> None:
    expected = "executorch_prim::floordiv.Scalar #1: division of 7 by zero"
    assert expected == refused(quotient(), np.array(0))


def test_a_kernel_that_fails_says_where() -> None:
    runner = method([i64(2), i64(3), 1, i64(3)], [0, 1], [3], kernel("aten::add.out", 0, 1, 2, 3, 3))
    message = refused(runner, np.zeros(2, np.int64), np.zeros(3, np.int64))
    assert message.startswith("aten::add.out #0: aten.add.Tensor(int64[2], int64[3], 1) failed: ")


def test_a_primitive_that_gets_what_it_cannot_take_says_where() -> None:
    with pytest.raises(InvalidProgram) as error:
        method([None, 0.5, 0], [], [2], kernel("executorch_prim::add.Scalar", 0, 1, 2))
    where, what = "executorch_prim::add.Scalar #0", "executorch_prim.add.Scalar"
    assert f"{where}: {what}: argument 'a' cannot be None (a value is required)" == str(error.value)


def test_a_result_above_its_bound_says_where() -> None:
    runner = method([i64(2), 1, i64(1)], [0], [2], kernel("aten::add.out", 0, 0, 1, 2, 2))
    expected = "aten::add.out #0: its result is [2], the program allows at most [1]"
    assert expected == refused(runner, np.zeros(2, np.int64))


def test_a_loop_without_an_end_is_stopped() -> None:
    runner = method([False, 1, 2], [], [2], pte.MoveCall(1, 2), pte.JumpFalse(0, 0))
    runner.budget = Budget(Limits(instructions=1000))
    with pytest.raises(LimitExceeded) as error:
        runner()
    expected = "forward needs 1,001 instructions, 1,000 are allowed; where you trust the file, "
    assert f"{expected}load it with limits=Limits(instructions=…) or --limit instructions=…" == str(error.value)


def test_a_tensor_that_is_read_before_it_is_written_is_named() -> None:
    """The branch that would write value 1 is not taken."""
    steps = pte.JumpFalse(2, 2), kernel("aten::add.out", 0, 0, 3, 1, 1)
    runner = method([i64(2), i64(2), False, 1], [0], [1], *steps)
    assert "forward: v1:int64[2] is read before it has a value" == refused(runner, np.zeros(2, np.int64))


def repeated() -> MethodRunner:
    """Return the export of `map`: a counter that begins at 0, and rows (input 0, doubled) collected in a tensor."""
    row, times, rows, double, counter, unit, length, done = range(8)
    return method(
        [i64(2), i64(), i64(4, 2), i64(2), 0, 1, 0, False],
        [row, times],
        [rows, counter],
        kernel("aten::_local_scalar_dense", times, length),
        kernel("aten::add.out", row, row, unit, double, double),
        kernel("executorch_prim::et_copy_index.tensor", rows, double, counter),
        kernel("executorch_prim::add.Scalar", counter, unit, counter),
        kernel("executorch_prim::eq.Scalar", counter, length, done),
        pte.JumpFalse(done, 1),
    )


def test_a_loop_collects_rows_and_begins_anew_in_every_call() -> None:
    runner = repeated()
    runner.reset()
    for times in (4, 2, 3):
        rows, count = runner(np.array([times, 5]), np.array(times))
        assert [[2 * times, 10]] * times == rows.tolist()
        assert times == count


def loop(idle: int) -> MethodRunner:
    """Return a method that counts to the item of a tensor, with `idle` moves that never run."""
    times, counter, unit, length, done, never = range(6)
    return method(
        [i64(), 0, 1, 0, False, False],
        [times],
        [counter],
        kernel("aten::_local_scalar_dense", times, length),
        kernel("executorch_prim::add.Scalar", counter, unit, counter),
        kernel("executorch_prim::eq.Scalar", counter, length, done),
        pte.JumpFalse(done, 1),
        pte.JumpFalse(never, 5 + idle),
        *[pte.MoveCall(unit, counter)] * idle,
    )


def calls(runner: MethodRunner, times: int) -> int:
    """Count the Python and C calls that one call of the method makes."""
    count = 0

    def seen(_frame: object, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    runner(np.array(times))
    sys.setprofile(seen)
    try:
        assert times == runner(np.array(times))
    finally:
        sys.setprofile(None)
    return count


def test_a_jump_costs_the_same_however_many_instructions_there_are() -> None:
    assert calls(loop(4000), 40) == calls(loop(1), 40)


def test_an_output_that_nothing_writes_is_refused() -> None:
    with pytest.raises(InvalidProgram) as error:
        method([i64(2), i64(2)], [0], [0, 1])
    assert "model.pte: method forward: nothing writes its output 1, v1:int64[2]" == str(error.value)


def test_a_tensor_is_moved_to_one_like_it() -> None:
    with pytest.raises(InvalidProgram) as error:
        method([i64(2), i64(2, 1)], [0], [1], pte.MoveCall(0, 1))
    message = "value 0, input 0:int64[2], does not fit value 1, v1:int64[2, 1], where it is moved"
    assert f"model.pte: method forward: {message}" == str(error.value)
