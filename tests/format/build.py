"""Writes FlatBuffers by hand, well-formed or not, so that tests can say exactly what is in a file.

A `Table` maps slots to fields; the same Python object used twice is stored once, so that parts of a file overlap.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field


@dataclass(eq=False)
class Scalar:
    code: str  # a `struct` letter
    value: float


@dataclass(eq=False)
class Vector:
    code: str
    items: list[int] | list[float]
    count: int | None = None  # what the file claims


@dataclass(eq=False)
class Text:
    content: bytes


@dataclass(eq=False)
class Tables:
    items: list[Table]


@dataclass(eq=False)
class Table:
    fields: dict[int, Field] = field(default_factory=dict)


Part = Vector | Text | Tables | Table
Field = Scalar | Part


def u8(value: int) -> Scalar:
    return Scalar("B", value)


def i8(value: int) -> Scalar:
    return Scalar("b", value)


def i32(value: int) -> Scalar:
    return Scalar("i", value)


def u32(value: int) -> Scalar:
    return Scalar("I", value)


def i64(value: int) -> Scalar:
    return Scalar("q", value)


def u64(value: int) -> Scalar:
    return Scalar("Q", value)


def f64(value: float) -> Scalar:
    return Scalar("d", value)


def text(content: str) -> Text:
    return Text(content.encode())


def ids(*items: int) -> Vector:
    return Vector("i", list(items))


def table(*fields: Field | None) -> Table:
    """A table with these fields in its first slots; None leaves one out."""
    return Table({slot: value for slot, value in enumerate(fields) if value is not None})


def union(kind: int, content: Table | None = None) -> Table:
    """A table that is nothing but a union: an EValue, a VkValue, an Instruction."""
    return table(u8(kind), content if content is not None else table())


def flatbuffer(root: Table, identifier: bytes = b"TEST", header: bytes = b"") -> bytes:
    out = bytearray(4) + identifier + header
    struct.pack_into("<I", out, 0, _write(out, root))
    return bytes(out)


def program(root: Table, segments: bytes = b"") -> bytes:
    """A `.pte` with an extended header; the segment area follows the tables."""
    size = len(flatbuffer(root, b"ET12", bytes(32)))
    header = b"eh00" + struct.pack("<IQQQ", 32, size, size if segments else 0, len(segments))
    return flatbuffer(root, b"ET12", header) + segments


def data_file(root: Table, segments: bytes = b"") -> bytes:
    """A `.ptd`."""
    size = len(flatbuffer(root, b"FT01", bytes(40)))
    header = b"FH01" + struct.pack("<IQQQQ", 40, 48, size - 48, size, len(segments))
    return flatbuffer(root, b"FT01", header) + segments


def delegate_blob(root: Table, constants: bytes = b"") -> bytes:
    graph = flatbuffer(root, b"VK00")
    header = struct.pack("<HIIIQ", 30, 32, len(graph), 32 + len(graph), len(constants))
    return bytes(4) + b"VH00" + header + bytes(2) + graph + constants


def _write(out: bytearray, root: Table) -> int:
    """Append the parts level by level, so that references point forward, and return the position of the root."""
    placed: dict[int, int] = {}
    references: list[tuple[int, Part]] = []  # (where an offset belongs, to what)
    waiting: list[Part] = [root]
    for part in waiting:
        if id(part) in placed:
            continue
        if isinstance(part, Table):
            out += _field_list(part)
        placed[id(part)] = len(out)
        offsets = _append(out, part)
        references += offsets
        waiting += [target for _, target in offsets]
    for at, target in references:
        struct.pack_into("<I", out, at, placed[id(target)] - at)
    return placed[id(root)]


def _field_list(part: Table) -> bytes:
    offsets, size = [0] * (max(part.fields, default=-1) + 1), 4
    for slot, value in part.fields.items():
        offsets[slot] = size
        size += struct.calcsize(f"<{value.code}") if isinstance(value, Scalar) else 4
    return struct.pack(f"<HH{len(offsets)}H", 4 + 2 * len(offsets), size, *offsets)


def _append(out: bytearray, part: Part) -> list[tuple[int, Part]]:
    """Append one part, and return the positions of its offsets with their targets."""
    offsets: list[tuple[int, Part]] = []
    match part:
        case Text():
            out += struct.pack("<I", len(part.content)) + part.content + b"\0"
        case Vector():
            count = len(part.items) if part.count is None else part.count
            out += struct.pack("<I", count) + struct.pack(f"<{len(part.items)}{part.code}", *part.items)
        case Tables():
            out += struct.pack("<I", len(part.items))
            offsets = [(len(out) + 4 * index, item) for index, item in enumerate(part.items)]
            out += bytes(4 * len(part.items))
        case Table():
            out += struct.pack("<i", len(_field_list(part)))
            for value in part.fields.values():
                if isinstance(value, Scalar):
                    out += struct.pack(f"<{value.code}", value.value)
                else:
                    offsets.append((len(out), value))
                    out += bytes(4)
    return offsets
