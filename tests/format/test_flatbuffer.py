"""The FlatBuffers reader: values that it reads, and the exact text of each refusal."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from tests.format.build import Table as Built
from tests.format.build import Tables, Text, Vector, f64, flatbuffer, i8, i32, i64, table, text, u8, u32, u64, union

from ptegpu.errors import InvalidProgram
from ptegpu.format import flatbuffer as reader


def opened(root: Built) -> reader.FlatTable:
    return reader.FlatBuffer(memoryview(flatbuffer(root))).root()


def test_scalars_are_read_by_slot() -> None:
    root = opened(table(u8(200), i8(-3), i32(-70000), u32(4_000_000_000), i64(-(1 << 40)), u64(1 << 63), f64(0.5)))
    assert (root.u8(0), root.i8(1), root.i32(2), root.u32(3)) == (200, -3, -70000, 4_000_000_000)
    assert (root.i64(4), root.u64(5), root.f64(6)) == (-(1 << 40), 1 << 63, 0.5)


def test_what_is_absent_has_its_default() -> None:
    root = opened(table(None, u8(1)))
    numbers = root.u8(0), root.i8(0, 127), root.i32(9), root.u32(40), root.i64(0), root.u64(0), root.f64(0)
    assert numbers == (0, 127, 0, 0, 0, 0, 0.0) and isinstance(numbers[-1], float)
    assert root.string(0) is None
    assert root.table(0) is None
    assert (list(root.tables(0)), root.count(0), root.ints(0, "i"), root.floats(0)) == ([], 0, (), ())
    assert bytes(root.view(0)) == b""


def test_vectors_strings_and_tables_are_read() -> None:
    inner = [table(u8(number)) for number in (7, 8)]
    root = opened(table(Vector("q", [1, -2]), Vector("d", [0.5]), Vector("B", [9, 8]), text("größe"), Tables(inner)))
    assert root.ints(0, "q") == (1, -2)
    assert root.floats(1) == (0.5,)
    assert bytes(root.view(2)) == b"\x09\x08"
    assert root.string(3) == "größe"
    assert root.count(4) == 2
    assert [item.u8(0) for item in root.tables(4)] == [7, 8]


def test_a_view_knows_its_place_in_the_file() -> None:
    data = flatbuffer(table(Vector("B", [1, 2, 3])))
    root = reader.FlatBuffer(memoryview(data), base=1000).root()
    assert root.offset(0) == 1000 + data.index(b"\x01\x02\x03")


def test_a_union_is_a_kind_and_a_table() -> None:
    kind, content = opened(union(5, table(u8(3)))).union(0, "a value")
    assert (kind, content.u8(0)) == (5, 3)


def test_fields_added_by_later_schemas_are_passed_over() -> None:
    root = opened(Built({0: u8(1), 100: u8(2)}))
    assert root.u8(0) == 1


def patched(data: bytes, at: int, code: str, value: int) -> reader.FlatBuffer:
    out = bytearray(data)
    struct.pack_into(f"<{code}", out, at, value)
    return reader.FlatBuffer(memoryview(bytes(out)), path="f.pte")


FLAT = flatbuffer(table(u32(1)))  # 8: field list (6 bytes), 14: table (8 bytes)

BROKEN = [
    (lambda: patched(FLAT, 0, "I", 1 << 31).root(), "a table lies outside the buffer", 1 << 31),
    (lambda: patched(FLAT, 14, "i", 100).root(), "a table's field list lies outside the buffer", 14),
    (lambda: patched(FLAT, 14, "i", -7).root(), "a table's field list lies outside the buffer", 14),
    (lambda: patched(FLAT, 8, "H", 3).root(), "a field list of 3 bytes is malformed", 8),
    (lambda: patched(FLAT, 8, "H", 60000).root(), "a field list of 60000 bytes is malformed", 8),
    (lambda: patched(FLAT, 10, "H", 9).root(), "a table of 9 bytes lies outside the buffer", 14),
    (lambda: patched(FLAT, 12, "H", 5).root().u32(0), "field 0 lies outside its table", 14),
    (lambda: patched(FLAT, 18, "I", 40).root().string(0), "field 0 points outside the buffer", 18),
    (
        lambda: opened(table(Vector("i", [], count=1 << 30))).ints(0, "i"),
        "a vector of 4294967296 bytes lies outside the buffer",
        22,
    ),
    (lambda: opened(table(Text(b"\xff"))).string(0), "a string is not valid UTF-8", 26),
    (lambda: opened(table(Vector("i", [1, 2, 3]))).ints(0, "i", 2), "a list of 3 items is longer than 2", 26),
    (lambda: opened(table()).required_string(0, "a name"), "a name is missing", 12),
    (lambda: opened(table(u8(1))).union(0, "a value"), "a value is missing", 14),
    (lambda: reader.FlatBuffer(memoryview(b"1234567")).root(), "a FlatBuffer of 7 bytes is too short", 0),
]


@pytest.mark.parametrize(("read", "reason", "offset"), BROKEN, ids=[reason for _, reason, _ in BROKEN])
def test_a_broken_buffer_is_refused_with_the_place(read: Callable[[], object], reason: str, offset: int) -> None:
    with pytest.raises(InvalidProgram) as caught:
        read()
    assert (caught.value.reason, caught.value.offset) == (reason, offset)


def test_the_message_has_file_reason_and_offset() -> None:
    with pytest.raises(InvalidProgram) as caught:
        patched(FLAT, 10, "H", 9).root()
    assert str(caught.value) == "f.pte: a table of 9 bytes lies outside the buffer (at byte 14)"


def test_a_long_string_is_refused() -> None:
    with pytest.raises(InvalidProgram) as caught:
        opened(table(Text(b"x" * (reader.MAX_STRING + 1)))).string(0)
    assert caught.value.reason == "a string of 1048577 bytes is longer than 1048576"


def test_tables_that_share_their_content_are_refused_beyond_measure() -> None:
    shared = table(Vector("q", [0] * 100))
    two, fifty = opened(table(Tables([shared] * 2))), opened(table(Tables([shared] * 50)))
    assert [len(item.ints(0, "q")) for item in two.tables(0)] == [100, 100]
    with pytest.raises(InvalidProgram) as caught:
        [item.ints(0, "q") for item in fifty.tables(0)]
    assert caught.value.reason == "the tables and lists add up to more than 2 times the buffer they are in"


def test_items_are_counted_by_what_they_take_in_memory() -> None:
    assert len(opened(table(Vector("i", [0] * 1000))).ints(0, "i")) == 1000
    with pytest.raises(InvalidProgram) as caught:
        opened(table(Vector("B", [0] * 1000))).ints(0, "B")
    assert caught.value.reason == "the tables and lists add up to more than 2 times the buffer they are in"


def test_the_number_of_tables_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_TABLES", 3)
    root = opened(table(Tables([table() for _ in range(3)])))
    with pytest.raises(InvalidProgram) as caught:
        list(root.tables(0))
    assert caught.value.reason == "more than 3 tables"
