"""The element types of tensors: their sizes, NumPy types, and types on a GPU."""

from __future__ import annotations

from enum import Enum

import numpy as np


class DType(Enum):
    """An element type. `value` is the name shown to users."""

    size: int  # bytes of one element on the host
    numpy: np.dtype  # bfloat16, which NumPy lacks, is carried as uint16 bits
    device: DType  # its type on the GPU; 64-bit types narrow, with a range check at the boundary

    BOOL = "bool"
    U8 = "uint8"
    I8 = "int8"
    I16 = "int16"
    I32 = "int32"
    I64 = "int64"
    U16 = "uint16"
    U32 = "uint32"
    U64 = "uint64"
    F16 = "float16"
    BF16 = "bfloat16"
    F32 = "float32"
    F64 = "float64"

    Q8 = "q8"  # on a GPU only: 32-bit words of blocks (see `kernels/blocks.py`)

    # Types that ExecuTorch can store, and ptegpu only names:
    C32 = "complex32"
    C64 = "complex64"
    C128 = "complex128"
    QI8 = "qint8"
    QU8 = "quint8"
    QI32 = "qint32"
    QU4X2 = "quint4x2"
    QU2X4 = "quint2x4"
    BITS1X8 = "bits1x8"
    BITS2X4 = "bits2x4"
    BITS4X2 = "bits4x2"
    BITS8 = "bits8"
    BITS16 = "bits16"
    F8_E5M2 = "float8_e5m2"
    F8_E4M3 = "float8_e4m3fn"
    F8_E5M2_UZ = "float8_e5m2fnuz"
    F8_E4M3_UZ = "float8_e4m3fnuz"

    __hash__ = object.__hash__  # faster than Enum's, which runs Python code

    def __repr__(self) -> str:
        return self.value

    @property
    def runs(self) -> bool:
        """Return whether ptegpu computes with it; `numpy` and `device` are set for these types only."""
        return self not in _NAMED_ONLY

    @property
    def is_float(self) -> bool:
        return self in FLOATS or self in (DType.BF16, DType.F64)

    def nbytes(self, elements: int) -> int:
        """Return the bytes that a number of elements takes."""
        return elements // BLOCK * BLOCK_BYTES if self is DType.Q8 else elements * self.size

    @staticmethod
    def of(dtype: np.dtype) -> DType:
        """Return the DType of a NumPy dtype; raise KeyError if there is none."""
        return _BY_NUMPY[np.dtype(dtype).newbyteorder("=")]


BLOCK, BLOCK_BYTES = 32, 36  # of a block of Q8: elements, and bytes with their scale

FLOATS = (DType.F32, DType.F16)
INTS = (DType.I32, DType.I8, DType.U8)
NUMBERS = (*FLOATS, *INTS)
ON_GPU = (*NUMBERS, DType.BOOL)

_ALL = tuple(DType)
_NAMED_ONLY = dict.fromkeys(_ALL[_ALL.index(DType.Q8) :], 1) | {  # bytes of an element, or of several packed ones
    DType.C32: 4,
    DType.C64: 8,
    DType.C128: 16,
    DType.QI32: 4,
    DType.BITS16: 2,
}
RUNS = tuple(d for d in DType if d not in _NAMED_ONLY)
_DEVICE = {
    DType.I64: DType.I32,
    DType.F64: DType.F32,
    DType.BF16: DType.F32,
    DType.I16: DType.I32,
    DType.U16: DType.I32,
}
for _d in DType:
    _d.size, _d.device = _NAMED_ONLY.get(_d, 0), _DEVICE.get(_d, _d)
for _d in RUNS:
    _d.numpy = np.dtype("uint16" if _d is DType.BF16 else _d.value)
    _d.size = _d.numpy.itemsize
_BY_NUMPY = {np.dtype(d.value): d for d in RUNS if d is not DType.BF16}
