"""Which values of a call a delegate's blob takes: by type and order, and only where there is one answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, UnsupportedProgram
from ptegpu.format.delegate import BlobGraph, BlobTensor, BlobValue, SymInt
from ptegpu.format.pte import Tensor, Value
from ptegpu.graph.ends import ends

N = SymInt(0)


def inner(*dims: int, dtype: DType = DType.F32) -> BlobTensor:
    return BlobTensor(dtype, dims)


def outer(*sizes: int, dtype: DType = DType.F32, **more: Any) -> Tensor:
    return Tensor(dtype, sizes, tuple(range(len(sizes))), **more)


def blob(inputs: list[BlobValue], outputs: list[BlobValue]) -> BlobGraph:
    count = len(inputs)
    values = (*inputs, *outputs)
    return BlobGraph("0", (), values, tuple(range(count)), tuple(range(count, len(values))), ())


def found(graph: BlobGraph, given: list[Value], outs: list[Value]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For a call of the values 0, 1, … of which the last ones have no value before."""
    values = [*given, *outs]
    ids = tuple(range(len(values)))
    return ends(graph, ids, values, lambda k: k >= len(given), "delegate 3", "m.pte")


A, B, OUT = outer(2, 3), outer(4), outer(5)
MATCHES = [
    ("all are taken", [inner(2, 3), N], [A, 0], (0, 1)),
    ("the last int is gone", [inner(2, 3)], [A, 0], (0,)),
    ("the first int is gone", [inner(2, 3), inner(4)], [0, A, 0, B], (1, 3)),
    ("a tensor is gone", [inner(4)], [A, B], (1,)),
    ("one of two of the same rank is gone", [inner(4), N], [outer(3), B, 7], (1, 2)),
    ("a bool is no float", [inner(4)], [B, outer(4, dtype=DType.BOOL)], (0,)),
    ("an f16 blob takes f32", [inner(4, dtype=DType.F16)], [0, B], (1,)),
    ("an i32 blob takes int64", [inner(4, dtype=DType.I32)], [B, outer(4, dtype=DType.I64)], (1,)),
    ("an int may be a tensor of one element", [inner(4), N], [0, B, outer(1, dtype=DType.I64)], (1, 2)),
    ("an int input that may change", [N, inner(4)], [A, None, B], (1, 2)),
]


@pytest.mark.parametrize("wanted, given, expected", [m[1:] for m in MATCHES], ids=[m[0] for m in MATCHES])
def test_the_inputs_of_a_call_that_a_blob_takes(
    wanted: list[BlobValue], given: list[Value], expected: tuple[int, ...]
) -> None:
    assert (expected, (len(given),)) == found(blob(wanted, [inner(5)]), given, [OUT])


BUFFER = BlobTensor(DType.F32, (2, 3), constant=0)


def test_the_first_outputs_may_be_new_values_of_buffers() -> None:
    graph = replace(blob([inner(4)], [inner(2, 3), inner(5)]), values=(inner(4), inner(2, 3), inner(5), BUFFER))
    assert ((0,), (1,)) == found(graph, [B], [OUT])
    assert ((1,), (2,)) == found(graph, [0, B], [OUT])
    assert ((0,), (1, 2)) == found(graph, [B], [A, OUT])


def test_memory_that_was_never_written_may_be_an_input() -> None:
    graph = blob([inner(4), inner(5)], [inner(5)])
    assert ((0, 1), (2,)) == found(graph, [B], [OUT, OUT])


def test_a_result_may_be_written_again() -> None:
    assert ((0,), (1,)) == found(blob([inner(4)], [inner(4)]), [B, B], [])


AMBIGUOUS = [
    ("two ints, one taken", [N, inner(4)], [0, 0, B]),
    ("two tensors alike, one taken", [inner(4)], [B, 0, B]),
    ("bounds tell nothing of live sizes", [inner(4)], [outer(4, dynamic=True), outer(9, dynamic=True)]),
]


@pytest.mark.parametrize("wanted, given", [a[1:] for a in AMBIGUOUS], ids=[a[0] for a in AMBIGUOUS])
def test_more_than_one_answer_is_none(wanted: list[BlobValue], given: list[Value]) -> None:
    with pytest.raises(UnsupportedProgram) as error:
        found(blob(wanted, [inner(5)]), given, [OUT])
    assert (
        f"delegate 3 takes {len(wanted)} of the {len(given)} inputs that its call gives, and the file does not say "
        "which; export without partitions (`ptegpu export torch --no-delegate`)"
    ) == str(error.value)


def test_inputs_of_other_types_are_refused() -> None:
    with pytest.raises(InvalidProgram) as error:
        found(blob([inner(2, 3), N], [inner(5)]), [0, B, A], [OUT])
    assert "m.pte: delegate 3 takes (float32[2, 3], int), the call gives (int, float32[4], float32[2, 3])" == str(
        error.value
    )


def test_fewer_values_than_inputs_are_refused() -> None:
    with pytest.raises(InvalidProgram) as error:
        found(blob([inner(4), N], []), [B], [])
    assert "m.pte: delegate 3 takes 2 inputs, the call gives 1 values" == str(error.value)


def test_a_result_is_not_taken_for_an_input() -> None:
    """The blob has one input more than the call gives, of the type of the result."""
    with pytest.raises(InvalidProgram) as error:
        found(blob([inner(4), inner(5)], [inner(5)]), [B], [OUT])
    expected = (
        "m.pte: delegate 3 takes 2 inputs and has 1 results, the call gives 2 values for both; export the program again"
    )
    assert expected == str(error.value)
