"""What callers pass, as NumPy arrays of the declared dtype and shape; and results as the caller's kind of array."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import le
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..errors import InvalidInput
from ..plan.device_arrays import from_device
from ..plan.method import Var
from .signature import Spec

KINDS = "pass a NumPy array, a torch tensor, an object with DLPack, a list or a number"
BF16_KINDS = "pass a torch.bfloat16 tensor, an ml_dtypes.bfloat16 array, a list of numbers, or the bits as uint16"


def as_array(value: Any, var: Var, what: str) -> np.ndarray:
    """Return an argument as a logical array of the declared dtype and an allowed shape, or raise InvalidInput.

    NumPy arrays, torch tensors, anything with DLPack; Python numbers and lists take the declared dtype. Arrays that are
    not contiguous, or channels_last, are read in their logical order. bfloat16 is carried as uint16 bits.
    """
    assert var.dtype is not None
    plain = type(value) is np.ndarray and value.dtype == var.dtype.numpy
    array = value if plain else _converted(value, var, what)
    _check_shape(array, var, what)
    return array


def _check_shape(array: np.ndarray, var: Var, what: str) -> None:
    if fits(array.shape, var):
        return
    assert var.dtype is not None
    said = f"{what} must be {Spec.of('', var)}, not {var.dtype.value}{list(array.shape)}"
    if array.ndim != len(var.sizes):
        raise InvalidInput(f"{said}: it has {array.ndim} dimension{'s'[: array.ndim != 1]}, not {len(var.sizes)}")
    raise InvalidInput(said)


def fits(shape: tuple[int, ...], var: Var) -> bool:
    """Return whether a slot can hold a tensor of this shape."""
    sizes = var.sizes
    return shape == sizes or (var.dynamic and len(shape) == len(sizes) and all(map(le, shape, sizes)))


def _converted(value: Any, var: Var, what: str) -> np.ndarray:
    """Convert what is not yet an array of the declared dtype."""
    dtype = var.dtype
    assert dtype is not None
    if isinstance(value, bool | int | float | list | tuple):
        return _from_numbers(value, dtype, what)
    array, name = _from_torch(value, what) if is_torch(value) else _from_arrays(value, dtype, what)
    if name != dtype.value:
        how = BF16_KINDS if dtype is DType.BF16 else f"convert it to {dtype.value} first"
        raise InvalidInput(f"{what} must be {Spec.of('', var)}, not {name}{list(array.shape)}: {how}")
    return array


def _from_numbers(value: Any, dtype: DType, what: str) -> np.ndarray:
    """Convert Python numbers to the declared dtype; none loses its fraction."""
    try:
        found = np.asarray(value)
        if found.dtype.kind in "SU":
            raise TypeError("it holds text")
        if found.dtype.kind == "f" and not (dtype.is_float or dtype is DType.BOOL):
            fractions = found[found != np.floor(found)]
            if fractions.size:
                raise ValueError(f"{fractions.flat[0]} is not an integer")
        if dtype is DType.BF16:
            return from_device(np.asarray(value, np.float32), dtype)
        return np.asarray(value, dtype.numpy)
    except Exception as e:  # the code of what a list holds may raise anything
        raise InvalidInput(f"{what} must be a tensor of {dtype.value}: {e}") from None


def _from_arrays(value: Any, dtype: DType, what: str) -> tuple[np.ndarray, str]:
    """Return an array of NumPy or of another library, and what to call its dtype."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{what} is a masked array: fill its gaps first, as with .filled(0)")
    try:
        if isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "__dlpack__"):
            array = np.from_dlpack(value)
        elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            array = np.asarray(value)
        else:
            raise InvalidInput(f"{what} must be a tensor of {dtype.value}, not {type(value).__name__}: {KINDS}")
    except InvalidInput:
        raise
    except Exception as e:  # the object's own code may raise anything
        raise InvalidInput(f"{what} cannot be read from a {type(value).__name__}: {e}") from None
    name = array.dtype.name if array.dtype.isnative else str(array.dtype)
    return (array.view(np.uint16) if name == "bfloat16" else array.view(np.ndarray)), name


def _from_torch(tensor: Any, what: str) -> tuple[np.ndarray, str]:
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        tensor = tensor.detach().cpu()
        if name == "bfloat16":
            tensor = tensor.contiguous().view(sys.modules["torch"].uint16)
        return tensor.resolve_conj().resolve_neg().numpy(), name
    except (RuntimeError, TypeError) as e:  # sparse, without data, of a dtype that NumPy lacks
        raise InvalidInput(f"{what} cannot be read from a torch tensor: {e}") from None


def is_torch(value: Any) -> bool:
    """Return whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def check_writable(value: Any, what: str) -> None:
    """Raise InvalidInput unless `assign` can write `value`."""
    if is_torch(value) or (isinstance(value, np.ndarray) and value.flags.writeable):
        return
    kind = "a read-only array" if isinstance(value, np.ndarray) else type(value).__name__
    raise InvalidInput(
        f"the module writes {what}: pass a NumPy array that can be written or a torch tensor, not {kind}"
    )


def assign(target: Any, value: Any) -> None:
    """Write a result into an argument of the same dtype and shape."""
    if is_torch(target):
        torch = sys.modules["torch"]
        target.detach().copy_(torch.as_tensor(value).view(target.dtype))
    else:
        target[...] = np.asarray(value if not is_torch(value) else _from_torch(value, "")[0]).view(target.dtype)


class Kind(NamedTuple):
    """What a caller passed, and so gets back."""

    torch: bool
    bfloat16: np.dtype | None  # of the library that made one of the arguments; without it, bits as uint16

    @staticmethod
    def of(arguments: Sequence[Any]) -> Kind:
        torch, bfloat16 = False, None
        for a in arguments:
            if not isinstance(a, np.ndarray):
                torch = torch or is_torch(a)
            elif a.dtype.kind == "V" and a.dtype.name == "bfloat16":
                bfloat16 = bfloat16 or a.dtype
        return Kind(torch, bfloat16)

    def result(self, array: np.ndarray, dtype: DType) -> Any:
        """Return a writable array as this caller wants it."""
        if self.torch:
            torch = sys.modules["torch"]
            tensor = torch.from_numpy(array)
            return tensor.view(torch.bfloat16) if dtype is DType.BF16 else tensor
        return array.view(self.bfloat16) if dtype is DType.BF16 and self.bfloat16 else array
