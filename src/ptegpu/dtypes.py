"""The element types of tensors, in one place: their size, their NumPy type, and what they become on a GPU."""

from __future__ import annotations

from enum import Enum

import numpy as np


class DType(Enum):
    """An element type. `value` is the name shown to users."""

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

    def __repr__(self) -> str:
        return self.value

    @property
    def size(self) -> int:
        """Bytes of one element on the host."""
        return _SIZES[self]

    @property
    def numpy(self) -> np.dtype:
        """The NumPy type; bfloat16, which NumPy lacks, is carried as uint16 bits."""
        return np.dtype("uint16" if self is DType.BF16 else self.value)

    @property
    def device(self) -> DType:
        """The type this one has on the GPU: 64-bit types narrow (range-checked at the boundary)."""
        return _DEVICE.get(self, self)

    @property
    def is_float(self) -> bool:
        return self in FLOATS or self in (DType.BF16, DType.F64)

    @staticmethod
    def of(dtype: np.dtype) -> DType:
        """The DType of a NumPy dtype; KeyError if there is none."""
        return _BY_NUMPY[np.dtype(dtype).newbyteorder("=")]


FLOATS = (DType.F32, DType.F16)
INTS = (DType.I32, DType.I8, DType.U8)
NUMBERS = (*FLOATS, *INTS)
ON_GPU = (*NUMBERS, DType.BOOL)

_SIZES = {d: 2 if d is DType.BF16 else np.dtype(d.value).itemsize for d in DType}
_DEVICE = {
    DType.I64: DType.I32,
    DType.F64: DType.F32,
    DType.BF16: DType.F32,
    DType.I16: DType.I32,
    DType.U16: DType.I32,
}
_BY_NUMPY = {np.dtype(d.value): d for d in DType if d is not DType.BF16}
