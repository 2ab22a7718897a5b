"""The parts that formats share: segments after the tables, the layout of a tensor, lists of value ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple

from ..dtypes import DType
from ..errors import InvalidProgram
from .flatbuffer import FlatTable

MAX_RANK = 16  # ExecuTorch's own limit
MAX_BYTES = 1 << 62  # of one tensor
MAX_IDS = 1 << 14  # in one list: the arguments of a call, the inputs of a method

_SCALAR_NAMES = (  # in the order of ExecuTorch's ScalarType
    "U8 I8 I16 I32 I64 F16 F32 F64 C32 C64 C128 BOOL QI8 QU8 QI32 BF16 QU4X2 QU2X4 BITS1X8 BITS2X4 BITS4X2 BITS8 "
    "BITS16 F8_E5M2 F8_E4M3 F8_E5M2_UZ F8_E4M3_UZ U16 U32 U64"
)
SCALAR_TYPES = {code: DType[name] for code, name in enumerate(_SCALAR_NAMES.split())}

CONTIGUOUS = [tuple(range(rank)) for rank in range(MAX_RANK + 1)]  # shared by nearly all tensors


class TensorLayout(NamedTuple):
    dtype: DType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    nbytes: int


class Segments:
    """The data areas of a file, each checked to lie inside it. They start at `base`, which is 0 without segments."""

    def __init__(self, file: memoryview, base: int, table: FlatTable, slot: int) -> None:
        self._file, self._starts, self._sizes = file, array("Q"), array("Q")
        for index, segment in enumerate(table.tables(slot)):
            offset, size = segment.u64(0), segment.u64(1)
            if size and not base:
                segment.fail(f"segment {index} has {size} bytes, but the header declares no segments")
            if base + offset + size > len(file):
                segment.fail(f"segment {index} ends at byte {base + offset + size}, the file at {len(file)}")
            self._starts.append(base + offset)
            self._sizes.append(size)

    def find(self, index: int, user: FlatTable) -> tuple[int, memoryview]:
        """Return the file offset and the bytes of a segment that `user` refers to."""
        user.check_index("segment", index, len(self._starts))
        start = self._starts[index]
        return start, self._file[start : start + self._sizes[index]]


def check_end(end: int, data: memoryview, area: str, offset: int, path: str | None) -> None:
    """Raise InvalidProgram if a header at `offset` declares an area that ends after the file."""
    if end > len(data):
        raise InvalidProgram(f"truncated: {area} ends at byte {end}, the file at {len(data)}", offset=offset, path=path)


def read_layout(table: FlatTable, dtype_slot: int, sizes_slot: int, dim_order_slot: int) -> TensorLayout:
    code = table.i8(dtype_slot)
    if code not in SCALAR_TYPES:
        table.fail(f"unknown element type {code}")
    dtype = SCALAR_TYPES[code]
    sizes = table.ints(sizes_slot, "i", MAX_RANK)
    dim_order = table.ints(dim_order_slot, "B", MAX_RANK)
    if sizes and min(sizes) < 0:
        table.fail(f"tensor sizes {list(sizes)} are negative")
    contiguous = CONTIGUOUS[len(sizes)]
    if dim_order == contiguous:
        dim_order = contiguous
    elif tuple(sorted(dim_order)) != contiguous:
        table.fail(f"dimension order {list(dim_order)} does not fit the sizes {list(sizes)}")
    return TensorLayout(dtype, sizes, dim_order, checked_nbytes(table, dtype, sizes))


def checked_nbytes(table: FlatTable, dtype: DType, sizes: tuple[int, ...]) -> int:
    if prod(n or 1 for n in sizes) * dtype.size > MAX_BYTES:  # even an empty array cannot have such strides
        table.fail(f"a tensor of sizes {list(sizes)} is too large")
    return prod(sizes) * dtype.size


def read_ids(table: FlatTable, slot: int, code: str, count: int) -> tuple[int, ...]:
    """Return a vector of value ids, each below `count`."""
    ids = table.ints(slot, code, MAX_IDS)
    if ids:
        table.check_index("value", min(ids), count)
        table.check_index("value", max(ids), count)
    return ids


def named_entries(entries: Iterable[FlatTable]) -> Iterator[tuple[str, FlatTable]]:
    """Yield entries of named data with their keys, which must differ."""
    keys = set()
    for entry in entries:
        key = entry.required_string(0, "the key of named data")
        if key in keys:
            entry.fail(f"two named data have the key {key!r}")
        keys.add(key)
        yield key, entry
