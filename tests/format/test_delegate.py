"""Delegate blobs: what real ones hold, and every refusal by its text."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.format.build import (
    Field,
    Table,
    Tables,
    Vector,
    delegate_blob,
    f64,
    i8,
    i32,
    i64,
    ids,
    table,
    text,
    u8,
    u32,
    u64,
    union,
)

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram
from ptegpu.format import read_program
from ptegpu.format.delegate import (
    BlobCall,
    BlobGraph,
    BlobTensor,
    BlobValue,
    Constant,
    Ints,
    SymInt,
    ValueList,
    read_delegate,
)
from ptegpu.format.pte import BoolList, FloatList

DATA = Path(__file__).parent.parent / "data"


def graphs(name: str) -> list[BlobGraph]:
    file = read_program(DATA / name)
    return [read_delegate(delegate.blob) for method in file.methods for delegate in method.delegates]


# Real blobs


def test_an_mlp() -> None:
    (graph,) = graphs("mlp.pte")
    assert graph.version == "0"
    assert [call.operator for call in graph.calls] == [
        "aten.linear.default",
        "aten.relu.default",
        "aten.linear.default",
    ]
    first = graph.calls[0]
    assert graph.values[first.args[0]] == BlobTensor(DType.F32, (2, 8), -1, 0, DType.F32)
    assert graph.values[first.args[1]] == BlobTensor(DType.F32, (16, 8), 0, -1, DType.F32)
    assert (graph.inputs, graph.outputs) == ((first.args[0],), (graph.calls[-1].args[-1],))
    assert [constant.nbytes for constant in graph.constants] == [512, 64, 256, 16]


def test_constants_are_keys_of_named_data() -> None:
    file = read_program(DATA / "mlp.pte")
    (graph,) = graphs("mlp.pte")
    assert all(constant.data is None for constant in graph.constants)
    assert {constant.key: constant.nbytes for constant in graph.constants} == {
        key: len(data) for key, data in file.named_data.items()
    }


def test_symbolic_ints_and_lists_of_values() -> None:
    values = [value for graph in graphs("dynamic.pte") for value in graph.values]
    assert any(isinstance(value, SymInt) for value in values)
    assert any(isinstance(value, ValueList) for value in values)


# Hand-made blobs


def value(kind: int, *fields: Field | None) -> Table:
    return union(kind, table(*fields))


def tensor(dims: list[int], more: dict[int, Field] | None = None) -> Table:
    return union(5, Table({0: i8(5), 1: Vector("I", dims), 2: i32(-1), 3: i32(-1), **(more or {})}))


def constant(offset: int, length: int, key: str | None = None) -> Table:
    return table(u64(offset), u64(length), text(key) if key is not None else None)


def of(*values: Table, constants: list[Table] | None = None, **slots: Field) -> Table:
    """A graph; `s3=…` sets slot 3."""
    fields: dict[int, Field] = {2: Tables(list(values)), 5: Tables(constants or [])}
    return Table({**fields, **{int(name[1:]): field for name, field in slots.items()}})


def read(root: Table, constants: bytes = b"") -> BlobGraph:
    return read_delegate(memoryview(delegate_blob(root, constants)))


def test_every_kind_of_value() -> None:
    built: dict[Table, BlobValue] = {
        value(1): None,
        value(2, i64(-1 << 40)): -1 << 40,
        value(3, f64(np.inf)): np.inf,
        value(4, u8(1)): True,
        tensor([2, 3], {3: i32(7), 6: i8(4)}): BlobTensor(DType.F32, (2, 3), -1, 7, DType.F16),
        value(6, Vector("q", [9, -9])): Ints((9, -9)),
        value(7, Vector("d", [0.5])): FloatList((0.5,)),
        value(8, Vector("B", [1, 0])): BoolList((True, False)),
        value(9, ids(4, 1, 10)): ValueList((4, 1, 10)),
        value(10, text("floor")): "floor",
        value(11, i32(-2)): SymInt(-2),
        value(6): Ints(()),
    }
    assert read(of(*built)).values == tuple(built.values())


def test_an_absent_constant_or_memory_is_number_zero() -> None:
    graph = read(of(union(5, table(i8(5))), constants=[constant(0, 4)]), b"1234")
    assert graph.values == (BlobTensor(DType.F32, (), constant=0, memory=0),)
    assert (graph.constants[0].data, graph.constants[0].key) == (b"1234", None)


def test_constants_inline_and_named() -> None:
    graph = read(of(constants=[constant(1, 2), constant((1 << 64) - 1, 99, "key"), constant(5, 0)]), b"12345")
    assert graph.constants == (
        Constant(memoryview(b"23"), None, 2),
        Constant(None, "key", 99),
        Constant(memoryview(b""), None, 0),
    )


def test_a_view_without_elements_may_have_the_bytes_of_the_whole() -> None:
    graph = read(of(tensor([0, 3], {2: i32(0)}), constants=[constant(0, 4)]), b"1234")
    assert graph.values == (BlobTensor(DType.F32, (0, 3), constant=0),)


def test_calls_inputs_and_outputs() -> None:
    chain = Tables([table(u32(3), text("aten.add.Tensor"), ids(0, 1, 1))])
    graph = read(of(value(1), value(1), s0=text("0"), s1=chain, s3=Vector("I", [0]), s4=Vector("I", [1, 0])))
    assert graph == BlobGraph("0", (BlobCall(3, "aten.add.Tensor", (0, 1, 1)),), (None, None), (0,), (1, 0), ())


def test_constants_fill_the_blob_where_the_header_gives_no_size() -> None:
    blob = bytearray(delegate_blob(of(constants=[constant(0, 4)]), b"1234"))
    struct.pack_into("<Q", blob, 22, 0)
    assert read_delegate(memoryview(blob)).constants[0].data == b"1234"


REFUSED = [
    (of(value(0)), "unknown kind of value 0"),
    (of(value(12)), "unknown kind of value 12"),
    (of(value(10)), "a string is missing"),
    (of(tensor([2], {0: i8(127)})), "unknown element type 127"),
    (of(tensor([2], {6: i8(9)})), "unknown element type 9"),
    (of(tensor([1] * 17)), "a list of 17 items is longer than 16"),
    (of(tensor([0, *[1 << 31] * 2])), "a tensor of sizes [0, 2147483648, 2147483648] is too large"),
    (of(tensor([1 << 31] * 2)), "a tensor of sizes [2147483648, 2147483648] is too large"),
    (of(tensor([2], {2: i32(0)})), "constant 0 does not exist: there are 0"),
    (of(tensor([2], {2: i32(0)}), constants=[constant(0, 4)]), "constant 0 holds 4 bytes, its tensor needs 8"),
    (
        of(tensor([2], {2: i32(0)}), constants=[constant(0, 12)]),
        "constant 0 holds 12 bytes, its tensor float32[2] needs 8: it is a view of a larger tensor, which the exporter "
        "wrote in full; clone such tensors before exporting, or use `ptegpu export`",
    ),
    (of(constants=[constant(2, 11)]), "a constant of 11 bytes at 2 ends after the blob's 12 bytes of constants"),
    (
        of(constants=[constant((1 << 64) - 1, 3)]),
        "a constant of 3 bytes at 18446744073709551615 ends after the blob's 12 bytes of constants",
    ),
    (of(value(9, ids(1))), "value 1 does not exist: there are 1"),
    (of(value(9, ids(0))), "a list of values contains another list"),
    (of(value(6, Vector("q", [0] * 4097))), "a list of 4097 items is longer than 4096"),
    (of(s1=Tables([table()])), "an operator's name is missing"),
    (of(value(1), s1=Tables([table(None, text("a"), ids(-1))])), "value -1 does not exist: there are 1"),
    (of(s3=Vector("I", [1 << 31])), "value 2147483648 does not exist: there are 0"),
    (of(s4=Vector("I", [0])), "value 0 does not exist: there are 0"),
]


@pytest.mark.parametrize(("root", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_bad_graph_is_refused_with_the_reason(root: Table, reason: str) -> None:
    blob = memoryview(delegate_blob(root, b"123456789012"))
    with pytest.raises(InvalidProgram) as caught:
        read_delegate(blob, base=1000, path="m.pte")
    assert (caught.value.reason, caught.value.path) == (reason, "m.pte")
    assert caught.value.offset is not None and 1032 < caught.value.offset < 1000 + len(blob)


HEADERS = [
    (4, "I", 0, "not a Vulkan delegate blob (at byte 1004)"),
    (8, "H", 29, "a delegate header of 29 bytes is too short (at byte 1008)"),
    (10, "I", 29, "the delegate's graph overlaps its header (at byte 1010)"),
    (14, "I", 1 << 31, "the delegate's constants overlap its graph (at byte 1018)"),
    (18, "I", 99, "the delegate ends at byte 103, its blob at 80 (at byte 1018)"),
    (22, "Q", 5, "the delegate ends at byte 81, its blob at 80 (at byte 1018)"),
    (36, "I", 0, "the delegate's graph is not in the format VK00 (at byte 1036)"),
]


@pytest.mark.parametrize(("at", "code", "number", "message"), HEADERS)
def test_a_bad_header_is_refused(at: int, code: str, number: int, message: str) -> None:
    blob = bytearray(delegate_blob(of(), b"1234"))
    struct.pack_into(f"<{code}", blob, at, number)
    with pytest.raises(InvalidProgram) as caught:
        read_delegate(memoryview(blob), base=1000)
    assert str(caught.value) == message


def test_a_blob_shorter_than_its_header_is_refused() -> None:
    with pytest.raises(InvalidProgram) as caught:
        read_delegate(memoryview(b"1234VH00"))
    assert str(caught.value) == "a delegate blob of 8 bytes is too short (at byte 0)"
