"""What callers may pass, as NumPy arrays of the dtype and shape the program declares; and results in kind."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidInput
from ..graph.linear import Var


def as_array(value: Any, var: Var, what: str) -> np.ndarray:
    """An argument as a logical array of the declared dtype and an allowed shape; InvalidInput says what is wrong.

    NumPy arrays, torch tensors, anything with DLPack; Python numbers and lists take the declared dtype. Arrays that are
    not contiguous, or channels_last, are read in their logical order.
    """
    assert var.dtype is not None
    array = _to_numpy(value, var.dtype, what)
    given = f"{array.dtype}{list(array.shape)}"
    limit = "at most " if var.dynamic else ""
    wanted = f"{var.dtype.value}{limit and ' of '}{limit}{list(var.sizes)}"
    if array.dtype != var.dtype.numpy:
        raise InvalidInput(f"{what} must be {wanted}, not {given}: convert it to {var.dtype.value} first")
    if array.ndim != len(var.sizes):
        raise InvalidInput(
            f"{what} must be {wanted}, not {given}: it has {array.ndim} dimensions, {len(var.sizes)} are needed"
        )
    if var.dynamic:
        fits = all(n <= m for n, m in zip(array.shape, var.sizes, strict=True))
    else:
        fits = array.shape == var.sizes
    if not fits:
        raise InvalidInput(f"{what} must be {wanted}, not {given}")
    return array


def _to_numpy(value: Any, dtype: DType, what: str) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value.view(np.uint16) if dtype is DType.BF16 and value.dtype.itemsize == 2 else value
    if isinstance(value, bool | int | float | list | tuple | np.generic):
        try:
            array = np.asarray(value) if isinstance(value, np.generic) else np.asarray(value, dtype=dtype.numpy)
        except (ValueError, TypeError, OverflowError) as e:
            raise InvalidInput(f"{what} must be a tensor of {dtype.value}: {e}") from None
        return array
    if is_torch(value):
        return _from_torch(value)
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as e:
            raise InvalidInput(f"{what} cannot be read through DLPack: {e}") from None
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise InvalidInput(f"{what} must be a tensor of {dtype.value}, not {type(value).__name__}")


def is_torch(value: Any) -> bool:
    """Whether `value` is a torch tensor, without importing torch."""
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach")


def _from_torch(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.contiguous().view(sys.modules["torch"].uint16)
    return tensor.resolve_conj().resolve_neg().numpy()


def to_torch(array: np.ndarray, dtype: DType) -> Any:
    """A result for a caller who passed torch tensors."""
    torch = sys.modules["torch"]
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if dtype is DType.BF16 else tensor
