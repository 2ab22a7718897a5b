"""A bounds-checked FlatBuffers reader: it reads nothing before checking that it lies in the buffer.

A `Table` is opened at a position and asked for fields by slot number; an absent scalar is its default, an absent
vector is empty, an absent string or table is `None`. A bad buffer raises `InvalidProgram` with the file offset.

`Buffer` counts what is read: tables and strings by their size in the file, items of lists by what they take in memory.
An honest buffer, where no two parts overlap, stays well below twice its size; one that goes beyond is refused. So the
work and the memory that a file can cause are in proportion to its size, whatever its offsets and counts claim.
Offsets only point forward, so tables cannot form a cycle.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NoReturn

from ..errors import InvalidProgram

MAX_TABLES = 1 << 19
MAX_SLOTS = 16  # of a table; more than any schema here has
MAX_STRING = 1 << 20  # bytes
BUDGET = 2  # times the size of the buffer
ITEM_BYTES, FLOAT_BYTES = 8, 32  # what an item of a tuple takes in memory; ids are small and mostly shared

_One = Callable[[memoryview, int], tuple[int]]
_u8: _One = struct.Struct("<B").unpack_from
_i8: _One = struct.Struct("<b").unpack_from
_i32: _One = struct.Struct("<i").unpack_from
_u32: _One = struct.Struct("<I").unpack_from
_i64: _One = struct.Struct("<q").unpack_from
_u64: _One = struct.Struct("<Q").unpack_from
_f64: Callable[[memoryview, int], tuple[float]] = struct.Struct("<d").unpack_from
_u16_pair: Callable[[memoryview, int], tuple[int, int]] = struct.Struct("<HH").unpack_from
_vtables: list[Callable[[memoryview, int], tuple[int, ...]]] = [
    struct.Struct(f"<{n}H").unpack_from for n in range(MAX_SLOTS + 1)
]


class Buffer:
    """The bytes of one FlatBuffer; `base` is where they start in the file, for messages."""

    __slots__ = ("_bytes_left", "_tables_left", "base", "data", "path", "size")

    def __init__(self, data: memoryview, *, base: int = 0, path: str | None = None) -> None:
        self.data, self.base, self.path, self.size = data, base, path, len(data)
        self._bytes_left, self._tables_left = BUDGET * self.size, MAX_TABLES

    def fail(self, reason: str, position: int) -> NoReturn:
        raise InvalidProgram(reason, offset=self.base + position, path=self.path)

    def root(self) -> Table:
        if self.size < 8:
            self.fail(f"a FlatBuffer of {self.size} bytes is too short", 0)
        return Table(self, _u32(self.data, 0)[0])

    def spend(self, nbytes: int, position: int) -> None:
        self._bytes_left -= nbytes
        if self._bytes_left < 0:
            self.fail(f"the tables and lists add up to more than {BUDGET} times the buffer they are in", position)

    def spend_table(self, nbytes: int, position: int) -> None:
        self._tables_left -= 1
        if self._tables_left < 0:
            self.fail(f"more than {MAX_TABLES} tables", position)
        self.spend(nbytes, position)


class Table:
    """One table. Fields are named by slot number, in the order of the schema; a union takes two slots."""

    __slots__ = ("_data", "_fields", "_size", "buffer", "position")

    def __init__(self, buffer: Buffer, position: int) -> None:
        data, end = buffer.data, buffer.size
        if position + 4 > end:
            buffer.fail("a table lies outside the buffer", position)
        vtable = position - _i32(data, position)[0]
        if not 0 <= vtable <= end - 4:
            buffer.fail("a table's field list lies outside the buffer", position)
        vtable_size, size = _u16_pair(data, vtable)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > end:
            buffer.fail(f"a field list of {vtable_size} bytes is malformed", vtable)
        if size < 4 or position + size > end:
            buffer.fail(f"a table of {size} bytes lies outside the buffer", position)
        buffer.spend_table(size, position)
        self.buffer, self.position, self._data, self._size = buffer, position, data, size
        self._fields = _vtables[min((vtable_size - 4) // 2, MAX_SLOTS)](data, vtable + 4)

    def fail(self, reason: str) -> NoReturn:
        self.buffer.fail(reason, self.position)

    def u8(self, slot: int, default: int = 0) -> int:
        at = self._field(slot, 1)
        return _u8(self._data, at)[0] if at else default

    def i8(self, slot: int, default: int = 0) -> int:
        at = self._field(slot, 1)
        return _i8(self._data, at)[0] if at else default

    def i32(self, slot: int, default: int = 0) -> int:
        at = self._field(slot, 4)
        return _i32(self._data, at)[0] if at else default

    def u32(self, slot: int, default: int = 0) -> int:
        at = self._field(slot, 4)
        return _u32(self._data, at)[0] if at else default

    def i64(self, slot: int, default: int = 0) -> int:
        at = self._field(slot, 8)
        return _i64(self._data, at)[0] if at else default

    def u64(self, slot: int, default: int = 0) -> int:
        at = self._field(slot, 8)
        return _u64(self._data, at)[0] if at else default

    def f64(self, slot: int, default: float = 0.0) -> float:
        at = self._field(slot, 8)
        return _f64(self._data, at)[0] if at else default

    def string(self, slot: int) -> str | None:
        start, count = self._vector(slot, 1)
        if not start:
            return None
        if count > MAX_STRING:
            self.buffer.fail(f"a string of {count} bytes is longer than {MAX_STRING}", start)
        try:
            return str(self._data[start : start + count], "utf-8")
        except UnicodeDecodeError:
            self.buffer.fail("a string is not valid UTF-8", start)

    def required_string(self, slot: int, what: str) -> str:
        text = self.string(slot)
        if text is None:
            self.fail(f"{what} is missing")
        return text

    def view(self, slot: int) -> memoryview:
        """A vector of bytes, not copied."""
        start, count = self._vector(slot, 1)
        return self._data[start : start + count]

    def offset(self, slot: int) -> int:
        """Where in the file the first item of a vector is; the table's own place if it is absent."""
        target = self._target(slot)
        return self.buffer.base + (target + 4 if target else self.position)

    def count(self, slot: int) -> int:
        """The number of items of a vector."""
        target = self._target(slot)
        return _u32(self._data, target)[0] if target else 0

    def ints(self, slot: int, code: str, limit: int | None = None) -> tuple[int, ...]:
        """A vector of integers; `code` is their `struct` letter (B, i, I, q, Q), `limit` the most there may be."""
        return self._numbers(slot, code, limit)

    def floats(self, slot: int, limit: int | None = None) -> tuple[float, ...]:
        return self._numbers(slot, "d", limit)

    def table(self, slot: int) -> Table | None:
        target = self._target(slot)
        return Table(self.buffer, target) if target else None

    def tables(self, slot: int) -> Iterator[Table]:
        start, count = self._vector(slot, 4)
        for at in range(start, start + 4 * count, 4):
            yield Table(self.buffer, at + _u32(self._data, at)[0])

    def union(self, slot: int, what: str) -> tuple[int, Table]:
        """The kind of a union (its place in the schema, from 1) and its table."""
        kind, table = self.u8(slot), self.table(slot + 1)
        if table is None:
            self.fail(f"{what} is missing")
        return kind, table

    def _numbers(self, slot: int, code: str, limit: int | None) -> tuple[int, ...]:
        item_bytes = struct.calcsize(f"<{code}")
        start, count = self._vector(slot, item_bytes)
        if limit is not None and count > limit:
            self.buffer.fail(f"a list of {count} items is longer than {limit}", start)
        self.buffer.spend(count * ((FLOAT_BYTES if code == "d" else ITEM_BYTES) - item_bytes), start)
        return struct.unpack_from(f"<{count}{code}", self._data, start)

    def _field(self, slot: int, nbytes: int) -> int:
        """Where a field of that many bytes is; 0 if it is absent."""
        fields = self._fields
        if slot >= len(fields):
            return 0
        offset = fields[slot]
        if not offset:
            return 0
        if offset + nbytes > self._size:
            self.fail(f"field {slot} lies outside its table")
        return self.position + offset

    def _target(self, slot: int) -> int:
        """Where a string, vector or table starts, with its first four bytes proved; 0 if it is absent."""
        at = self._field(slot, 4)
        if not at:
            return 0
        target = at + _u32(self._data, at)[0]
        if target + 4 > self.buffer.size:
            self.buffer.fail(f"field {slot} points outside the buffer", at)
        return target

    def _vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """The place of the first item and the number of items; (0, 0) if it is absent."""
        target = self._target(slot)
        if not target:
            return 0, 0
        count, start = _u32(self._data, target)[0], target + 4
        nbytes = count * item_bytes
        if start + nbytes > self.buffer.size:
            self.buffer.fail(f"a vector of {nbytes} bytes lies outside the buffer", target)
        self.buffer.spend(4 + nbytes, target)
        return start, count
