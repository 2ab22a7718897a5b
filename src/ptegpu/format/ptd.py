"""`.ptd` files (`FT01`): tensors and other data by name, outside the program that uses them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..dtypes import DType
from ..errors import InvalidProgram
from .container import Segments, check_end, named_entries, read_layout
from .flatbuffer import FlatBuffer, FlatTable
from .source import DATA, Source, fail_foreign, open_source

HEADER_BYTES = 40
VERSION = 0  # the newest layout of the tables


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A view of the tensor's bytes in the mapped file. Data other than a tensor has bytes only."""

    data: memoryview
    dtype: DType | None = None
    sizes: tuple[int, ...] | None = None
    dim_order: tuple[int, ...] | None = None


def read_data(source: Source, *, name: str | None = None) -> Mapping[str, NamedTensor]:
    """Read a `.ptd`; `name` replaces the path in messages."""
    data, path = open_source(source, name=name, expected=DATA)
    if bytes(data[4:8]) != b"FT01":
        fail_foreign(data, path, DATA)
    if bytes(data[8:12]) != b"FH01" or len(data) < 8 + HEADER_BYTES:
        raise InvalidProgram("the data file has no header", offset=8, path=path)
    length, tables_start, tables_size, base, data_size = struct.unpack_from("<IQQQQ", data, 12)
    if length < HEADER_BYTES:
        raise InvalidProgram(f"a header of {length} bytes is too short", offset=12, path=path)
    check_end(tables_start + tables_size, data, "the table area", 16, path)
    check_end(base + data_size, data, "the segment area", 32, path)
    root = FlatBuffer(data[: tables_start + tables_size], path=path).root()
    if root.u32(0) > VERSION:
        root.fail(f"data format version {root.u32(0)} is newer than {VERSION}")
    segments = Segments(data, base, root, 1)
    return MappingProxyType({key: _read_entry(entry, key, segments) for key, entry in named_entries(root.tables(2))})


def _read_entry(entry: FlatTable, key: str, segments: Segments) -> NamedTensor:
    _, data = segments.find(entry.u32(1), entry)
    table = entry.table(2)
    if table is None:
        return NamedTensor(data)
    layout = read_layout(table, 0, 1, 2)
    if layout.nbytes > len(data):
        entry.fail(f"{key!r} holds {len(data)} bytes, its layout needs {layout.nbytes}")
    return NamedTensor(data[: layout.nbytes], layout.dtype, layout.sizes, layout.dim_order)
