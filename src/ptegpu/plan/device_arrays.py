"""Conversions between host arrays and their GPU dtypes: 64-bit types narrow with a range check."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidInput
from .method import Var

_I32 = np.iinfo(np.int32)
_F32_MAX = float(np.finfo(np.float32).max)


def to_device(array: np.ndarray, dtype: DType, what: str) -> np.ndarray:
    """Return the elements of a `dtype` array as contiguous `dtype.device`; raise InvalidInput if one does not fit."""
    device = dtype.device
    if dtype is DType.BF16:
        return (array.astype(np.uint32, order="C") << np.uint32(16)).view(np.float32)
    if device is dtype:
        return np.asarray(array, order="C")  # ascontiguousarray would give a scalar a dimension
    if dtype is DType.I64 and array.size:
        low, high = value_range(array)
        if low < _I32.min or high > _I32.max:
            worst = low if low < _I32.min else high
            text = f"the int64 value {worst} does not fit int32, which is what the GPU computes with"
            raise InvalidInput(f"{what}: {text}")
    elif dtype is DType.F64 and array.size:
        finite = np.abs(array[np.isfinite(array)])
        if finite.size and (largest := float(finite.max())) > _F32_MAX:
            text = f"the float64 value {largest:g} does not fit float32, which is what the GPU computes with"
            raise InvalidInput(f"{what}: {text}")
    return np.asarray(array, dtype=device.numpy, order="C")


def value_range(array: np.ndarray) -> tuple[int, int]:
    """Return the smallest and the largest of an array of ints."""
    if array.size == 1:
        only = array.item()
        return only, only
    return int(array.min()), int(array.max())


def clip_indices(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return indices as `dtype.device`. Values beyond int32 become its limits, which are out of range as well."""
    values = np.clip(array, _I32.min, _I32.max) if dtype is DType.I64 else array
    return np.asarray(values, dtype.device.numpy, order="C")


def from_device(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return results widened to the host type `dtype` that the program declares."""
    if dtype is DType.BF16:
        bits = np.asarray(array, dtype=np.float32, order="C").view(np.uint32)
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16  # ties to even
        return np.asarray(np.where(np.isnan(array), 0x7FC0, nearest), dtype=np.uint16)  # rounding could destroy a NaN
    return array.astype(dtype.numpy, copy=False)


def as_kernels_read(value: Any, v: Var) -> Any:
    """Return a slot's value as kernels see it: bfloat16, which NumPy lacks, as float32."""
    return to_device(value, DType.BF16, v.name) if v.dtype is DType.BF16 else value
