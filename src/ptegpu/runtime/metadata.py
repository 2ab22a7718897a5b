"""The metadata of a method and its tensors, with ExecuTorch's names and texts."""

from __future__ import annotations

from ..dtypes import DType
from ..errors import IndexOutOfRange
from ..format import FileMethod as FileMethod
from ..format import FileTensor, Value
from ..format.container import SCALAR_TYPES

_CODES = {dtype: code for code, dtype in SCALAR_TYPES.items()}
_NAMES = {
    DType.U8: "Byte",
    DType.I8: "Char",
    DType.I16: "Short",
    DType.I32: "Int",
    DType.I64: "Long",
    DType.F16: "Half",
    DType.F32: "Float",
    DType.F64: "Double",
    DType.BOOL: "Bool",
    DType.BF16: "BFloat16",
    DType.U16: "UInt16",
    DType.U32: "UInt32",
    DType.U64: "UInt64",
}
_TAGS = {type(None): "None", bool: "Bool", int: "Int", float: "Double", str: "String"}


class TensorInfo:
    """The dtype and sizes of a tensor; `sizes` are upper bounds where shapes are dynamic."""

    def __init__(self, tensor: FileTensor) -> None:
        self._tensor = tensor

    def sizes(self) -> tuple[int, ...]:
        return self._tensor.sizes

    def dtype(self) -> int:
        """Return the number of its element type in PyTorch's `ScalarType`: 6 is float32."""
        return _CODES[self._tensor.dtype]

    def is_memory_planned(self) -> bool:
        return self._tensor.planned

    def nbytes(self) -> int:
        return self._tensor.nbytes

    def __repr__(self) -> str:
        t = self._tensor
        about = f"dtype={_NAMES[t.dtype]}, is_memory_planned={t.planned}, nbytes={t.nbytes}"
        return f"TensorInfo(sizes={list(t.sizes)}, {about})"


class MethodMeta:
    """The signature of a method."""

    def __init__(self, method: FileMethod) -> None:
        self._name = method.name
        self._inputs: list[Value] = [method.values[k] for k in method.inputs]
        self._outputs: list[Value] = [method.values[k] for k in method.outputs]
        self._attributes: list[Value] = [v for v in method.values if isinstance(v, FileTensor) and v.name is not None]

    def name(self) -> str:
        return self._name

    def num_inputs(self) -> int:
        return len(self._inputs)

    def num_outputs(self) -> int:
        return len(self._outputs)

    def num_attributes(self) -> int:
        """Count the tensors that the file names: buffers, where the exporter was asked to name them."""
        return len(self._attributes)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        return self._tensor(self._inputs, index, "input")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        return self._tensor(self._outputs, index, "output")

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        return self._tensor(self._attributes, index, "attribute")

    def _tensor(self, values: list[Value], index: int, kind: str) -> TensorInfo:
        if not 0 <= index < len(values):
            raise IndexOutOfRange(f"{self._name} has no {kind} {index}: there are {len(values)}, counted from 0")
        value = values[index]
        if not isinstance(value, FileTensor):
            raise IndexOutOfRange(f"{kind} {index} of {self._name} is not a tensor, but {value!r}")
        return TensorInfo(value)

    def __repr__(self) -> str:
        inputs, outputs = [_shown(v) for v in self._inputs], [_shown(v) for v in self._outputs]
        return (
            f"MethodMeta(name={self._name!r}, num_inputs={len(inputs)}, input_tensor_meta={inputs}, "
            f"num_outputs={len(outputs)}, output_tensor_meta={outputs})"
        )


def _shown(value: Value) -> str:
    return repr(TensorInfo(value)) if isinstance(value, FileTensor) else _TAGS.get(type(value), type(value).__name__)
