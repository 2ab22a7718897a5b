"""Matching of a call's values with a delegate's inputs: by type and order, and only if it is unambiguous."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, UnsupportedProgram
from ptegpu.format.delegate import BlobGraph, BlobTensor, BlobValue, SymInt
from ptegpu.format.pte import FileTensor, Value
from ptegpu.graph.delegates import split_arguments

N = SymInt(0)


def inner(*dims: int, dtype: DType = DType.F32) -> BlobTensor:
    return BlobTensor(dtype, dims)


def outer(*sizes: int, dtype: DType = DType.F32, **more: Any) -> FileTensor:
    return FileTensor(dtype, sizes, tuple(range(len(sizes))), **more)


def blob(inputs: list[BlobValue], outputs: list[BlobValue]) -> BlobGraph:
    count = len(inputs)
    values = (*inputs, *outputs)
    return BlobGraph("0", (), values, tuple(range(count)), tuple(range(count, len(values))), ())


def split(graph: BlobGraph, inputs: list[Value], outs: list[Value]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split a call with the values 0, 1, …; `outs` have no value before the call."""
    values = [*inputs, *outs]
    ids = tuple(range(len(values)))
    return split_arguments(graph, ids, values, lambda k: k >= len(inputs), "delegate 3", "m.pte")


A, B, OUT = outer(2, 3), outer(4), outer(5)
MATCHES = [
    ("all are inputs", [inner(2, 3), N], [A, 0], (0, 1)),
    ("the last int is unused", [inner(2, 3)], [A, 0], (0,)),
    ("the first int is unused", [inner(2, 3), inner(4)], [0, A, 0, B], (1, 3)),
    ("a tensor is unused", [inner(4)], [A, B], (1,)),
    ("one of two of the same rank is unused", [inner(4), N], [outer(3), B, 7], (1, 2)),
    ("a bool is not a float", [inner(4)], [B, outer(4, dtype=DType.BOOL)], (0,)),
    ("an f16 blob takes f32", [inner(4, dtype=DType.F16)], [0, B], (1,)),
    ("an i32 blob takes int64", [inner(4, dtype=DType.I32)], [B, outer(4, dtype=DType.I64)], (1,)),
    ("an int may be a tensor of one element", [inner(4), N], [0, B, outer(1, dtype=DType.I64)], (1, 2)),
    ("an int input that may change", [N, inner(4)], [A, None, B], (1, 2)),
]


@pytest.mark.parametrize("inputs, listed, expected", [m[1:] for m in MATCHES], ids=[m[0] for m in MATCHES])
def test_the_inputs_of_a_call_that_a_blob_takes(
    inputs: list[BlobValue], listed: list[Value], expected: tuple[int, ...]
) -> None:
    assert (expected, (len(listed),)) == split(blob(inputs, [inner(5)]), listed, [OUT])


BUFFER = BlobTensor(DType.F32, (2, 3), constant=0)


def test_the_first_outputs_may_be_new_values_of_buffers() -> None:
    graph = replace(blob([inner(4)], [inner(2, 3), inner(5)]), values=(inner(4), inner(2, 3), inner(5), BUFFER))
    assert ((0,), (1,)) == split(graph, [B], [OUT])
    assert ((1,), (2,)) == split(graph, [0, B], [OUT])
    assert ((0,), (1, 2)) == split(graph, [B], [A, OUT])


def test_memory_that_was_never_written_may_be_an_input() -> None:
    graph = blob([inner(4), inner(5)], [inner(5)])
    assert ((0, 1), (2,)) == split(graph, [B], [OUT, OUT])


def test_a_result_may_be_written_again() -> None:
    assert ((0,), (1,)) == split(blob([inner(4)], [inner(4)]), [B, B], [])


AMBIGUOUS = [
    ("two ints, one used", [N, inner(4)], [0, 0, B]),
    ("two equal tensors, one used", [inner(4)], [B, 0, B]),
    ("upper bounds do not determine live sizes", [inner(4)], [outer(4, dynamic=True), outer(9, dynamic=True)]),
]


@pytest.mark.parametrize("inputs, listed", [a[1:] for a in AMBIGUOUS], ids=[a[0] for a in AMBIGUOUS])
def test_ambiguous_inputs_are_refused(inputs: list[BlobValue], listed: list[Value]) -> None:
    with pytest.raises(UnsupportedProgram) as error:
        split(blob(inputs, [inner(5)]), listed, [OUT])
    assert (
        f"delegate 3 takes {len(inputs)} of the {len(listed)} inputs of its call, and the file does not say "
        "which; export without partitions (`ptegpu export torch --no-delegate`)"
    ) == str(error.value)


def test_inputs_of_other_types_are_refused() -> None:
    with pytest.raises(InvalidProgram) as error:
        split(blob([inner(2, 3), N], [inner(5)]), [0, B, A], [OUT])
    assert "m.pte: delegate 3 takes (float32[2, 3], int), the call has (int, float32[4], float32[2, 3])" == str(
        error.value
    )


def test_fewer_values_than_inputs_are_refused() -> None:
    with pytest.raises(InvalidProgram) as error:
        split(blob([inner(4), N], []), [B], [])
    assert "m.pte: delegate 3 takes 2 inputs, the call has 1 values" == str(error.value)


def test_a_result_is_not_taken_for_an_input() -> None:
    """The blob has an additional input of the result's type, which the call does not list."""
    with pytest.raises(InvalidProgram) as error:
        split(blob([inner(4), inner(5)], [inner(5)]), [B], [OUT])
    expected = (
        "m.pte: delegate 3 takes 2 inputs and has 1 results, the call has 2 values for both; export the program again"
    )
    assert expected == str(error.value)
