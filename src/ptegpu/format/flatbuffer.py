"""A bounds-checked FlatBuffers reader: it reads nothing before checking that it lies in the buffer.

A `FlatTable` is opened at a position and returns fields by slot number. An absent scalar is 0, an absent vector is
empty, an absent string or table is `None`. A bad buffer raises `InvalidProgram` with the file offset.

`FlatBuffer` counts the bytes read: tables and strings by their size in the file, list items by their size in memory.
In an honest buffer no two parts overlap, so the count stays well below twice its size. A buffer that exceeds this is
refused. So the work and the memory that a file can cause are proportional to its size, whatever its offsets and counts
claim. Offsets only point forward, so tables cannot form a cycle.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from ..errors import InvalidProgram

MAX_TABLES = 1 << 19
MAX_SLOTS = 16  # of a table; no schema here has more
MAX_STRING = 1 << 20  # bytes
BUDGET = 2  # times the size of the buffer
ITEM_BYTES, FLOAT_BYTES = 8, 32  # memory of a tuple's item; ids are small and mostly shared

Unpack = Callable[[memoryview, int], tuple[int, ...]]
_i8: Unpack = struct.Struct("<b").unpack_from
_i32: Unpack = struct.Struct("<i").unpack_from
_u32: Unpack = struct.Struct("<I").unpack_from
_u16_pair: Unpack = struct.Struct("<HH").unpack_from
_vtables: list[Unpack] = [struct.Struct(f"<{n}H").unpack_from for n in range(MAX_SLOTS + 1)]

Number = TypeVar("Number", int, float)


class FlatBuffer:
    """The bytes of one FlatBuffer; `base` is their offset in the file, for messages."""

    __slots__ = ("_bytes_left", "_tables_left", "base", "data", "path", "size")

    def __init__(self, data: memoryview, *, base: int = 0, path: str | None = None) -> None:
        self.data, self.base, self.path, self.size = data, base, path, len(data)
        self._bytes_left, self._tables_left = BUDGET * self.size, MAX_TABLES

    def fail(self, reason: str, position: int) -> NoReturn:
        raise InvalidProgram(reason, offset=self.base + position, path=self.path)

    def root(self) -> FlatTable:
        if self.size < 8:
            self.fail(f"a FlatBuffer of {self.size} bytes is too short", 0)
        return FlatTable(self, _u32(self.data, 0)[0])

    def spend(self, nbytes: int, position: int) -> None:
        self._bytes_left -= nbytes
        if self._bytes_left < 0:
            self.fail(f"the tables and lists add up to more than {BUDGET} times the buffer they are in", position)

    def spend_table(self, nbytes: int, position: int) -> None:
        self._tables_left -= 1
        if self._tables_left < 0:
            self.fail(f"more than {MAX_TABLES} tables", position)
        self.spend(nbytes, position)


def _scalar(code: str, default: Number) -> Callable[[FlatTable, int], Number]:
    """Return the method that reads a field by its `struct` letter."""
    nbytes, unpack = struct.calcsize(f"<{code}"), struct.Struct(f"<{code}").unpack_from

    def read(table: FlatTable, slot: int) -> Number:
        position = table._field(slot, nbytes)
        value: Number = unpack(table._data, position)[0] if position else default
        return value

    return read


class FlatTable:
    """One table. Fields are named by slot number, in the order of the schema; a union takes two slots."""

    __slots__ = ("_data", "_fields", "_size", "buffer", "position")

    def __init__(self, buffer: FlatBuffer, position: int) -> None:
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

    u8 = _scalar("B", 0)
    i32, u32 = _scalar("i", 0), _scalar("I", 0)
    i64, u64 = _scalar("q", 0), _scalar("Q", 0)
    f64 = _scalar("d", 0.0)

    def check_index(self, noun: str, index: int, count: int, first: int = 0) -> None:
        if not first <= index < count:
            self.fail(f"{noun} {index} does not exist: there are {count}")

    def i8(self, slot: int, default: int = 0) -> int:
        position = self._field(slot, 1)
        return _i8(self._data, position)[0] if position else default

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
        """Return a vector of bytes without copying it."""
        start, count = self._vector(slot, 1)
        return self._data[start : start + count]

    def offset(self, slot: int) -> int:
        """Return the file offset of a vector's first item, or of the table if the vector is absent."""
        target = self._target(slot)
        return self.buffer.base + (target + 4 if target else self.position)

    def count(self, slot: int) -> int:
        """Return the number of items in a vector."""
        target = self._target(slot)
        return _u32(self._data, target)[0] if target else 0

    def ints(self, slot: int, code: str, limit: int | None = None) -> tuple[int, ...]:
        """Return a vector of at most `limit` integers; `code` is their `struct` letter (B, i, I, q, Q)."""
        item_bytes = struct.calcsize(f"<{code}")
        start, count = self._vector(slot, item_bytes)
        if limit is not None and count > limit:
            self.buffer.fail(f"a list of {count} items is longer than {limit}", start)
        self.buffer.spend(count * ((FLOAT_BYTES if code == "d" else ITEM_BYTES) - item_bytes), start)
        return struct.unpack_from(f"<{count}{code}", self._data, start)

    def floats(self, slot: int, limit: int | None = None) -> tuple[float, ...]:
        return self.ints(slot, "d", limit)

    def table(self, slot: int) -> FlatTable | None:
        target = self._target(slot)
        return FlatTable(self.buffer, target) if target else None

    def tables(self, slot: int) -> Iterator[FlatTable]:
        start, count = self._vector(slot, 4)
        for at in range(start, start + 4 * count, 4):
            yield FlatTable(self.buffer, at + _u32(self._data, at)[0])

    def union(self, slot: int, what: str) -> tuple[int, FlatTable]:
        """Return the kind of a union (its index in the schema, from 1) and its table."""
        kind, table = self.u8(slot), self.table(slot + 1)
        if table is None:
            self.fail(f"{what} is missing")
        return kind, table

    def _field(self, slot: int, nbytes: int) -> int:
        """Return the position of a field of `nbytes`, or 0 if it is absent."""
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
        """Return where a string, vector or table starts, 0 if it is absent. Its first four bytes are in the buffer."""
        at = self._field(slot, 4)
        if not at:
            return 0
        target = at + _u32(self._data, at)[0]
        if target + 4 > self.buffer.size:
            self.buffer.fail(f"field {slot} points outside the buffer", at)
        return target

    def _vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """Return the position of a vector's first item and the number of items, or (0, 0) if it is absent."""
        target = self._target(slot)
        if not target:
            return 0, 0
        count, start = _u32(self._data, target)[0], target + 4
        nbytes = count * item_bytes
        if start + nbytes > self.buffer.size:
            self.buffer.fail(f"a vector of {nbytes} bytes lies outside the buffer", target)
        self.buffer.spend(4 + nbytes, target)
        return start, count
