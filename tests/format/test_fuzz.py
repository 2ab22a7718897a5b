"""Damaged and hostile files: every one of them is read, or refused with `InvalidProgram`, within a bound of memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.format import test_delegate, test_pte
from tests.format.build import (
    Field,
    Table,
    Tables,
    Text,
    Vector,
    delegate_blob,
    ids,
    program,
    table,
    text,
    u8,
    u32,
    u64,
    union,
)

from ptegpu.errors import InvalidProgram
from ptegpu.format import FileTensor, read_program
from ptegpu.format.delegate import BlobTensor, read_delegate
from ptegpu.format.ptd import read_data

DATA = Path(__file__).parent.parent / "data"
PROGRAMS = sorted(DATA.glob("*.pte"))
FLIPPED = [DATA / name for name in ("cnn.pte", "control.pte", "dynamic.pte")]
FLIPS = (0xFF, 0x01, 0x80)
MUTANTS = 20_000  # of the three files, at least
SLACK = 16 << 10  # bytes: frames, the error, and the ints of one list, which weigh on small files only


def consume(content: bytes | bytearray) -> None:
    """Read a program with its delegates, and check all properties that its users rely on."""
    for method in read_program(content).methods:
        for value in method.values:
            if isinstance(value, FileTensor):
                assert value.data is None or len(value.data) == value.nbytes
                assert value.initial is None or len(value.initial) == value.nbytes
                assert sorted(value.dim_order) == list(range(len(value.sizes)))
        for delegate in method.delegates:
            graph = read_delegate(delegate.blob, base=delegate.offset)
            for constant in graph.constants:
                assert constant.data is None or len(constant.data) == constant.nbytes
            for value in graph.values:
                if isinstance(value, BlobTensor) and value.constant >= 0:
                    assert graph.constants[value.constant].nbytes >= value.nbytes


def survives(content: bytes | bytearray) -> bool:
    """Return whether a file can be read. Errors other than `InvalidProgram` are raised."""
    try:
        consume(content)
    except InvalidProgram as error:
        assert error.reason and "\n" not in str(error)
        return False
    return True


def table_bytes(content: bytes) -> list[range]:
    """Return the ranges of the headers and tables of a program and its delegates."""
    ranges = [range(struct.unpack_from("<Q", content, 16)[0])]
    for method in read_program(content).methods:
        for delegate in method.delegates:
            start, size = struct.unpack_from("<II", delegate.blob, 10)
            ranges.append(range(delegate.offset, delegate.offset + start + size))
    return ranges


def flips(content: bytes) -> Iterator[tuple[int, int]]:
    return ((at, flip) for area in table_bytes(content) for at in area for flip in FLIPS)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_every_truncation_is_refused(path: Path) -> None:
    content = path.read_bytes()
    assert survives(content)
    assert [size for size in range(0, len(content), 64) if survives(content[:size])] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", FLIPPED, ids=lambda path: path.name)
def test_every_flip_of_a_byte_is_read_or_refused(path: Path) -> None:
    content = path.read_bytes()
    mutant, read, refused = bytearray(content), 0, 0
    for at, flip in flips(content):
        mutant[at] = content[at] ^ flip
        try:
            survived = survives(mutant)
        except Exception as error:
            pytest.fail(f"byte {at} ^ {flip:#x} raises {error!r}")
        mutant[at] = content[at]
        read, refused = read + survived, refused + (not survived)
    assert refused > read > 0


def test_there_are_enough_flips() -> None:
    assert sum(1 for path in FLIPPED for _ in flips(path.read_bytes())) >= MUTANTS


@pytest.mark.parametrize("path", sorted(DATA.glob("*.ptd")), ids=lambda path: path.name)
def test_every_flip_and_truncation_of_a_data_file(path: Path) -> None:
    content = path.read_bytes()
    damaged = [content[:size] for size in range(0, len(content), 16)]
    damaged += [
        content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :] for at in range(len(content)) for flip in FLIPS
    ]
    for mutant in damaged:
        try:
            read_data(mutant)
        except InvalidProgram as error:
            assert error.reason


# Several changes at once, at words that are likely offsets and counts

WORDS = st.sampled_from(
    [0, 1, 2, 3, 4, 5, 8, 12, 64, 255, 256, 1024, 4096, (1 << 31) - 1, 1 << 31, (1 << 32) - 4, (1 << 32) - 1]
)


@pytest.mark.slow
@given(data=st.data(), path=st.sampled_from(PROGRAMS))
@settings(max_examples=1500, deadline=None)
def test_several_changes_are_read_or_refused(data: st.DataObject, path: Path) -> None:
    content = bytearray(path.read_bytes())
    places = st.sampled_from(table_bytes(bytes(content))).flatmap(lambda area: st.integers(area.start, area.stop - 4))
    for at in data.draw(st.lists(places, min_size=1, max_size=8)):
        match data.draw(st.sampled_from(["byte", "word", "copy"])):
            case "byte":
                content[at] = data.draw(st.integers(0, 255))
            case "word":
                struct.pack_into("<I", content, at & ~3, data.draw(WORDS))
            case "copy":
                start = data.draw(places)
                content[at : at + 4] = content[start : start + 4]
    survives(content)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_noise_behind_a_good_start_is_read_or_refused(noise: bytes) -> None:
    survives(b"\x30\x00\x00\x00ET12" + noise)
    survives(b"\x08\x00\x00\x00ET12" + noise)


# Hostile files: each claims more than it has


def repeated(count: int, item: Table) -> Tables:
    return Tables([item] * count)


def in_delegate(root: Table) -> bytes:
    blob = Vector("B", list(delegate_blob(root)))
    delegates = Tables([table(text("VulkanBackend"), table())])
    return program(test_pte.of(test_pte.plan(more={7: delegates}), s3=Tables([table(blob)])))


def claims(count: int, code: str = "i") -> Vector:
    return Vector(code, [0] * 4, count=count)


WIDE = test_pte.evalue(7, Vector("q", [0] * 1000))
TALL = test_pte.plan(*(test_pte.evalue(1) for _ in range(200)))
LONG = test_pte.evalue(6, Text(b"x" * 5000))
CALL = union(1, table(None, ids(*[0] * 1000)))
ADDED: dict[int, Field] = {6: Tables([table(text("aten::add"))])}

HOSTILE = {
    "lists of one vector": program(
        test_pte.of(test_pte.plan(*[test_pte.evalue(7, vector) for vector in [Vector("q", [0] * 2000)] * 200]))
    ),
    "values that are one list": program(test_pte.of(Table({**test_pte.plan().fields, 2: repeated(5000, WIDE)}))),
    "values that are one string": program(test_pte.of(Table({**test_pte.plan().fields, 2: repeated(5000, LONG)}))),
    "methods that are one": program(Table({1: repeated(5000, TALL)})),
    "calls that are one": program(
        test_pte.of(test_pte.plan(test_pte.evalue(1), more=ADDED, instructions=[CALL] * 5000))
    ),
    "segments that are one": program(Table({4: repeated(5000, table(u64(0), u64(4)))}), b"data"),
    "names that are one": program(Table({4: Tables([table()]), 7: repeated(5000, table(text("a" * 1000)))})),
    "values of one kind in a delegate": in_delegate(
        table(None, None, repeated(5000, test_delegate.value(6, Vector("q", [0] * 999))))
    ),
    "calls of one kind in a delegate": in_delegate(
        table(None, repeated(5000, table(u32(0), text("a" * 500), ids(*[0] * 500))), Tables([test_delegate.value(1)]))
    ),
    "a long list of values": program(test_pte.of(Table({0: text("f"), 2: claims((1 << 32) - 1)}))),
    "a long list of ids": program(test_pte.of(test_pte.plan(more={3: claims(1 << 31)}))),
    "a long list that wraps around": program(test_pte.of(test_pte.plan(more={8: claims(1 << 29, "q")}))),
    "a long string": program(test_pte.of(test_pte.plan(test_pte.evalue(6, claims((1 << 32) - 5, "B"))))),
    "a large tensor": program(test_pte.of(test_pte.plan(test_pte.tensor([(1 << 31) - 1] * 16)))),
    "a large constant": program(
        test_pte.of(test_pte.plan(test_pte.tensor([1 << 30], more={5: u32(1)})), **test_pte.SEGMENTS), bytes(12)
    ),
    "a large segment": program(Table({4: Tables([table(u64((1 << 64) - 1), u64((1 << 64) - 1))])}), bytes(12)),
    "a table in itself": program(test_pte.of(Table({0: text("f"), 2: Vector("I", [0])}))),
    "a delegate of nothing": in_delegate(table(None, None, Tables([table(u8(5))]))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_little_memory(name: str) -> None:
    content = HOSTILE[name]
    tracemalloc.start()
    try:
        assert not survives(content)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(content) + SLACK
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("path", FLIPPED, ids=lambda path: path.name)
def test_a_damaged_file_takes_little_memory(path: Path) -> None:
    content = path.read_bytes()
    mutant = bytearray(content)
    tracemalloc.start()
    try:
        for at, flip in list(flips(content))[::37]:
            mutant[at] = content[at] ^ flip
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            survived = survives(mutant)
            peak = tracemalloc.get_traced_memory()[1] - before
            mutant[at] = content[at]
            assert survived or peak < 2 * len(content) + SLACK
    finally:
        tracemalloc.stop()
