"""NumPy arrays at the border of a program: arguments, results as the caller's kind of array, data from its files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from operator import le
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from ..dtypes import DType
from ..errors import InvalidInput
from ..limits import copying
from ..plan.device_arrays import from_device
from ..plan.method import Call, CompiledMethod, Host, Jump, Operand, Var, variables
from ..plan.plan import Plan
from .signature import Spec

if TYPE_CHECKING:
    from ..compiler.planner import Planner
    from ..gpu import DeviceTensor

KINDS = "pass a NumPy array, a torch tensor, an object with DLPack, a list or a number"
SMALL = 1 << 16  # bytes of a constant
BF16_KINDS = "pass a torch.bfloat16 tensor, an ml_dtypes.bfloat16 array, a list of numbers, or the bits as uint16"


def as_array(value: Any, var: Var, label: str) -> np.ndarray:
    """Return an argument as a logical array of the declared dtype and an allowed shape, or raise InvalidInput.

    `value` is a NumPy array, a torch tensor, an object with DLPack, or Python numbers and lists, which take the
    declared dtype. Arrays that are not contiguous, or channels_last, are read in logical order. bfloat16 is carried as
    its bits in uint16.
    """
    assert var.dtype is not None
    plain = type(value) is np.ndarray and value.dtype == var.dtype.numpy
    array = value if plain else _converted(value, var, label)
    if fits(array.shape, var):
        return array
    message = f"{label} must be {Spec.of('', var)}, not {var.dtype.value}{list(array.shape)}"
    if array.ndim != len(var.sizes):
        message += f": it has {array.ndim} dimension{'s'[: array.ndim != 1]}, not {len(var.sizes)}"
    raise InvalidInput(message)


def fits(shape: tuple[int, ...], var: Var) -> bool:
    """Return whether a slot can hold a tensor of this shape."""
    sizes = var.sizes
    return shape == sizes or (var.dynamic and len(shape) == len(sizes) and all(map(le, shape, sizes)))


def _converted(value: Any, var: Var, label: str) -> np.ndarray:
    dtype = var.dtype
    assert dtype is not None
    if isinstance(value, bool | int | float | list | tuple):
        return _from_numbers(value, dtype, label)
    array, name = _from_torch(value, label) if is_torch(value) else _from_arrays(value, dtype, label)
    if name != dtype.value:
        advice = BF16_KINDS if dtype is DType.BF16 else f"convert it to {dtype.value} first"
        raise InvalidInput(f"{label} must be {Spec.of('', var)}, not {name}{list(array.shape)}: {advice}")
    return array


def _from_numbers(value: Any, dtype: DType, label: str) -> np.ndarray:
    """Convert Python numbers to the declared dtype; refuse to drop fractions."""
    try:
        numbers = np.asarray(value)
        if numbers.dtype.kind in "SU":
            raise TypeError("it holds text")
        if numbers.dtype.kind == "f" and not (dtype.is_float or dtype is DType.BOOL):
            fractions = numbers[numbers != np.floor(numbers)]
            if fractions.size:
                raise ValueError(f"{fractions.flat[0]} is not an integer")
        if dtype is DType.BF16:
            return from_device(np.asarray(value, np.float32), dtype)
        return np.asarray(value, dtype.numpy)
    except Exception as e:  # objects in a list may raise anything
        raise InvalidInput(f"{label} must be a tensor of {dtype.value}: {e}") from None


def _from_arrays(value: Any, dtype: DType, label: str) -> tuple[np.ndarray, str]:
    """Return an array of NumPy or of another library, and the name of its dtype."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{label} is a masked array: fill its gaps first, as with .filled(0)")
    try:
        if isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "__dlpack__"):
            array = np.from_dlpack(value)
        elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            array = np.asarray(value)
        else:
            raise InvalidInput(f"{label} must be a tensor of {dtype.value}, not {type(value).__name__}: {KINDS}")
    except InvalidInput:
        raise
    except Exception as e:  # the object's own code may raise anything
        raise InvalidInput(f"{label} cannot be read from a {type(value).__name__}: {e}") from None
    name = array.dtype.name if array.dtype.isnative else str(array.dtype)
    return (array.view(np.uint16) if name == "bfloat16" else array.view(np.ndarray)), name


def _from_torch(tensor: Any, label: str) -> tuple[np.ndarray, str]:
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        tensor = tensor.detach().cpu()
        if name == "bfloat16":
            tensor = tensor.contiguous().view(sys.modules["torch"].uint16)
        return tensor.resolve_conj().resolve_neg().numpy(), name
    except (RuntimeError, TypeError) as e:  # sparse, without data, of a dtype that NumPy lacks
        raise InvalidInput(f"{label} cannot be read from a torch tensor: {e}") from None


def is_torch(value: Any) -> bool:
    """Return whether `value` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_device_tensor(value: Any) -> TypeGuard[DeviceTensor]:
    """Return whether `value` is a tensor on a GPU, without importing `ptegpu.gpu`."""
    module = sys.modules.get("ptegpu.gpu.readback")
    return module is not None and isinstance(value, module.DeviceTensor)


def check_writable(value: Any, label: str) -> None:
    """Raise InvalidInput unless `assign` can write `value`."""
    if is_torch(value) or (isinstance(value, np.ndarray) and value.flags.writeable):
        return
    kind = "a read-only array" if isinstance(value, np.ndarray) else type(value).__name__
    raise InvalidInput(
        f"the module writes {label}: pass a NumPy array that can be written or a torch tensor, not {kind}"
    )


def assign(target: Any, value: Any) -> None:
    """Write a result into an argument of the same dtype and shape."""
    if is_torch(target):
        torch = sys.modules["torch"]
        target.detach().copy_(torch.as_tensor(value).view(target.dtype))
    else:
        target[...] = np.asarray(value if not is_torch(value) else _from_torch(value, "")[0]).view(target.dtype)


class ArrayKind(NamedTuple):
    """The kind of arrays that a caller passed and gets back."""

    torch: bool
    bfloat16: np.dtype | None  # of an argument's library; None: bits as uint16

    @staticmethod
    def of(arguments: Sequence[Any]) -> ArrayKind:
        torch, bfloat16 = False, None
        for a in arguments:
            if not isinstance(a, np.ndarray):
                torch = torch or is_torch(a)
            elif a.dtype.kind == "V" and a.dtype.name == "bfloat16":
                bfloat16 = bfloat16 or a.dtype
        return ArrayKind(torch, bfloat16)

    def result(self, array: np.ndarray, dtype: DType) -> Any:
        """Return a writable array as the caller's kind."""
        if self.torch:
            torch = sys.modules["torch"]
            tensor = torch.from_numpy(array)
            return tensor.view(torch.bfloat16) if dtype is DType.BF16 else tensor
        return array.view(self.bfloat16) if dtype is DType.BF16 and self.bfloat16 else array


def detach_from_file(method: CompiledMethod, planners: Iterable[Planner]) -> None:
    """Replace the data that a loaded method still reads by copies, since its files may change or be truncated later.

    Weights are on the GPU already. The rest are slots that the host reads, constants that are used as indices, which
    are checked at each size, and small constants, which rules may read when they trace new sizes.
    """
    for var in _slots(method):
        var.data = _copied(var.data)
    for plan in method.plans:
        _copy_blobs(plan)
    for planner in planners:
        for tensor in planner.graph.tensors():
            if tensor.data is not None and tensor.data.nbytes <= SMALL:
                tensor.data = _copied(tensor.data)


def _copied(array: np.ndarray | None) -> np.ndarray | None:
    if array is None or array.flags.owndata:
        return array
    copying(array.nbytes)
    return array.copy()


def _slots(method: CompiledMethod) -> set[Var]:
    operands: list[Operand] = [*method.outputs, *method.states]
    for item in method.items:
        if not isinstance(item, Host):
            operands += item.inputs
            operands += (a for h in item.exact if isinstance(h.instruction, Call) for a in h.instruction.args)
        elif isinstance(item.instruction, Call):
            operands += item.instruction.args
        else:
            i = item.instruction
            operands.append(i.condition if isinstance(i, Jump) else i.source)
    return {v for operand in operands for v in variables(operand)}


def _copy_blobs(plan: Plan) -> None:
    bounds = [b for family in plan.families for b in family.bounds if b.kind == "constant"]
    indices = {plan.buffers[b.source].blob for b in bounds}  # type: ignore[index]
    blobs = plan.blobs
    if isinstance(blobs, list):
        for k, blob in enumerate(blobs):
            if not isinstance(blob, bytes) and (k in indices or memoryview(blob).nbytes <= SMALL):
                copying(memoryview(blob).nbytes)
                blobs[k] = bytes(blob)
