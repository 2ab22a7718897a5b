"""What the formats share: segments behind the tables, the layout of a tensor, lists of value ids."""

from __future__ import annotations

from array import array
from math import prod
from typing import NamedTuple

from ..dtypes import DType
from ..errors import InvalidProgram
from .flatbuffer import Table

MAX_RANK = 16  # ExecuTorch's own limit
MAX_BYTES = 1 << 62  # of one tensor
MAX_IDS = 1 << 14  # in one list: the arguments of a call, the inputs of a method

SCALAR_TYPES = {
    0: DType.U8,
    1: DType.I8,
    2: DType.I16,
    3: DType.I32,
    4: DType.I64,
    5: DType.F16,
    6: DType.F32,
    7: DType.F64,
    8: DType.C32,
    9: DType.C64,
    10: DType.C128,
    11: DType.BOOL,
    12: DType.QI8,
    13: DType.QU8,
    14: DType.QI32,
    15: DType.BF16,
    16: DType.QU4X2,
    17: DType.QU2X4,
    18: DType.BITS1X8,
    19: DType.BITS2X4,
    20: DType.BITS4X2,
    21: DType.BITS8,
    22: DType.BITS16,
    23: DType.F8_E5M2,
    24: DType.F8_E4M3,
    25: DType.F8_E5M2_UZ,
    26: DType.F8_E4M3_UZ,
    27: DType.U16,
    28: DType.U32,
    29: DType.U64,
}

CONTIGUOUS = [tuple(range(rank)) for rank in range(MAX_RANK + 1)]  # shared by nearly all tensors


class Layout(NamedTuple):
    dtype: DType
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    nbytes: int


class Segments:
    """The data areas of a file, each proved to lie in it. They start at `base`; 0 says that there are none."""

    def __init__(self, file: memoryview, base: int, table: Table, slot: int) -> None:
        self._file, self._starts, self._sizes = file, array("Q"), array("Q")
        for index, segment in enumerate(table.tables(slot)):
            offset, size = segment.u64(0), segment.u64(1)
            if size and not base:
                segment.fail(f"segment {index} has {size} bytes, but the header says that the file has no segments")
            if base + offset + size > len(file):
                segment.fail(f"segment {index} ends at byte {base + offset + size}, the file at {len(file)}")
            self._starts.append(base + offset)
            self._sizes.append(size)

    def __len__(self) -> int:
        return len(self._starts)

    def find(self, index: int, user: Table) -> tuple[int, memoryview]:
        """The file offset and the bytes of a segment that `user` refers to."""
        if index >= len(self):
            user.fail(f"segment {index} does not exist: there are {len(self)}")
        start = self._starts[index]
        return start, self._file[start : start + self._sizes[index]]


def check_end(end: int, data: memoryview, what: str, offset: int, path: str | None) -> None:
    """Raises where a header at `offset` promises more than the file holds."""
    if end > len(data):
        raise InvalidProgram(f"truncated: {what} ends at byte {end}, the file at {len(data)}", offset=offset, path=path)


def read_layout(table: Table, dtype_slot: int, sizes_slot: int, dim_order_slot: int) -> Layout:
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
    return Layout(dtype, sizes, dim_order, checked_nbytes(table, dtype, sizes))


def checked_nbytes(table: Table, dtype: DType, sizes: tuple[int, ...]) -> int:
    if prod(n or 1 for n in sizes) * dtype.size > MAX_BYTES:  # no array has such strides, even if it is empty
        table.fail(f"a tensor of sizes {list(sizes)} is too large")
    return prod(sizes) * dtype.size


def read_ids(table: Table, slot: int, code: str, count: int) -> tuple[int, ...]:
    """A vector of value ids, of which there are `count`."""
    ids = table.ints(slot, code, MAX_IDS)
    if ids and (min(ids) < 0 or max(ids) >= count):
        table.fail(f"value {min(ids) if min(ids) < 0 else max(ids)} does not exist: there are {count}")
    return ids
