"""The blob of a Vulkan delegate: a `VH00` header, a `VK00` graph, and optional constants after it.

An operator call refers to values by id. A list of values never contains another list. Constants are views of the blob,
or keys of named data. Storage and layout hints are ignored: bytes are always plain and contiguous.
Slot numbers are those of the Vulkan backend's `schema.fbs`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

from ..dtypes import DType
from ..errors import InvalidProgram
from .container import MAX_RANK, checked_nbytes, read_ids
from .flatbuffer import FlatBuffer, FlatTable
from .pte import MAX_LITERALS, BoolList, FloatList

HEADER_BYTES = 30
NO_OFFSET = (1 << 64) - 1  # the offset of a constant in named data

DATA_TYPES = dict(enumerate((DType.BOOL, DType.U8, DType.I8, DType.I32, DType.F16, DType.F32, DType.F64, DType.I64)))
UNSET = 127  # the code of no type


@dataclass(frozen=True, slots=True)
class BlobTensor:
    dtype: DType
    dims: tuple[int, ...]  # upper bounds where the graph is dynamic
    constant: int = -1  # index into `BlobGraph.constants`; -1 for other tensors
    memory: int = -1  # tensors with the same number may share memory; -1: its memory is not shared
    staging: DType | None = None  # the type of its bytes outside the GPU, if different

    @property
    def numel(self) -> int:
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


@dataclass(frozen=True, slots=True)
class SymInt:
    """A symbolic int. `value` is its value at export."""

    value: int


@dataclass(frozen=True, slots=True)
class ValueList:
    """Ids of values: tensors, or ints and symbolic ints."""

    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ints:
    """A list of int values, not of ids."""

    items: tuple[int, ...]


BlobValue = None | bool | int | float | str | BlobTensor | SymInt | ValueList | Ints | FloatList | BoolList


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes in the blob, or the key of `nbytes` of named data."""

    data: memoryview | None
    key: str | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class BlobCall:
    node: int
    operator: str  # "aten.add.Tensor"
    args: tuple[int, ...]  # value ids; the output is the last


@dataclass(frozen=True, slots=True)
class BlobGraph:
    version: str
    calls: tuple[BlobCall, ...]
    values: tuple[BlobValue, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[Constant, ...]


def read_delegate(blob: memoryview, *, base: int = 0, path: str | None = None) -> BlobGraph:
    """Read a blob that starts at byte `base` of the file `path`; both are for messages only."""
    graph, data = _split(blob, base, path)
    root = graph.root()
    constants = tuple([_read_constant(table, data) for table in root.tables(5)])
    count = root.count(2)
    values = tuple([_read_value(*value.union(0, "a value"), constants, count) for value in root.tables(2)])
    for value in values:
        if isinstance(value, ValueList) and any(isinstance(values[item], ValueList) for item in value.items):
            root.fail("a list of values contains another list")
    calls = tuple(
        [
            BlobCall(call.u32(0), call.required_string(1, "an operator's name"), read_ids(call, 2, "i", count))
            for call in root.tables(1)
        ]
    )
    inputs, outputs = read_ids(root, 3, "I", count), read_ids(root, 4, "I", count)
    return BlobGraph(root.string(0) or "", calls, values, inputs, outputs, constants)


def _split(blob: memoryview, base: int, path: str | None) -> tuple[FlatBuffer, memoryview]:
    """Return the buffer of the graph's tables, and the bytes of inline constants."""

    def check(ok: bool, reason: str, position: int) -> None:
        if not ok:
            raise InvalidProgram(reason, offset=base + position, path=path)

    check(len(blob) >= HEADER_BYTES, f"a delegate blob of {len(blob)} bytes is too short", 0)
    check(bytes(blob[4:8]) == b"VH00", "not a Vulkan delegate blob", 4)
    header_size, graph_start, graph_size, data_start, data_size = struct.unpack_from("<HIIIQ", blob, 8)
    check(header_size >= HEADER_BYTES, f"a delegate header of {header_size} bytes is too short", 8)
    check(graph_start >= header_size, "the delegate's graph overlaps its header", 10)
    check(data_start >= graph_start + graph_size, "the delegate's constants overlap its graph", 18)
    data_end = data_start + data_size if data_size else max(data_start, len(blob))
    check(data_end <= len(blob), f"the delegate ends at byte {data_end}, its blob at {len(blob)}", 18)
    graph = blob[graph_start : graph_start + graph_size]
    check(bytes(graph[4:8]) == b"VK00", "the delegate's graph is not in the format VK00", graph_start + 4)
    return FlatBuffer(graph, base=base + graph_start, path=path), blob[data_start:data_end]


def _read_constant(table: FlatTable, data: memoryview) -> Constant:
    offset, nbytes, key = table.u64(0), table.u64(1), table.string(2)
    if offset == NO_OFFSET and key is not None:
        return Constant(None, key, nbytes)
    if offset + nbytes > len(data):
        table.fail(f"a constant of {nbytes} bytes at {offset} ends after the blob's {len(data)} bytes of constants")
    return Constant(data[offset : offset + nbytes], None, nbytes)


def _read_value(kind: int, table: FlatTable, constants: tuple[Constant, ...], count: int) -> BlobValue:
    match kind:
        case 1:
            return None
        case 2:
            return table.i64(0)
        case 3:
            return table.f64(0)
        case 4:
            return table.u8(0) != 0
        case 5:
            return _read_tensor(table, constants)
        case 6:
            return Ints(table.ints(0, "q", MAX_LITERALS))
        case 7:
            return FloatList(table.floats(0, MAX_LITERALS))
        case 8:
            return BoolList(tuple([item != 0 for item in table.ints(0, "B", MAX_LITERALS)]))
        case 9:
            return ValueList(read_ids(table, 0, "i", count))
        case 10:
            return table.required_string(0, "a string")
        case 11:
            return SymInt(table.i32(0))
    table.fail(f"unknown kind of value {kind}")


def _read_tensor(table: FlatTable, constants: tuple[Constant, ...]) -> BlobTensor:
    code, staging_code = table.i8(0), table.i8(6, UNSET)
    if code not in DATA_TYPES:
        table.fail(f"unknown element type {code}")
    if staging_code not in DATA_TYPES and staging_code != UNSET:
        table.fail(f"unknown element type {staging_code}")
    dtype, staging, dims = DATA_TYPES[code], DATA_TYPES.get(staging_code), table.ints(1, "I", MAX_RANK)
    nbytes = checked_nbytes(table, dtype, dims)
    constant, memory = max(table.i32(2), -1), max(table.i32(3), -1)
    table.check_index("constant", constant, len(constants), first=-1)
    if constant >= 0 and nbytes:
        stored = constants[constant].nbytes
        if stored < nbytes:
            table.fail(f"constant {constant} holds {stored} bytes, its tensor needs {nbytes}")
        if stored > nbytes:  # the tensor is a view, and its offset in these bytes is not recorded
            table.fail(
                f"constant {constant} holds {stored} bytes, its tensor {dtype.value}{list(dims)} needs {nbytes}: it is "
                "a view of a larger tensor, which the exporter wrote in full; clone such tensors before exporting, or "
                "use `ptegpu export`"
            )
    return BlobTensor(dtype, dims, constant, memory, staging)
