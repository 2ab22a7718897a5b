"""What a method takes and gives, as its file declares it, and how arrays are summed up for a reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidInput
from ..format import Method, Program, Tensor, Value
from ..models.door import Source
from ..plan import from_device, to_device
from ..units import number

FIRST = 6  # values shown of an output
DEFAULT = "forward"


def methods_of(source: Source) -> Program:
    """Return what a file says about the methods that it can run: of a bundle, those that were compiled."""
    if source.bundle is None:
        return source.file
    methods = tuple(m for m in source.file.methods if m.name in source.bundle.methods[0])
    return replace(source.file, methods=methods)


def find_method(program: Program, name: str | None) -> Method:
    """The method of that name; without one `forward`, or the only one there is."""
    names = [method.name for method in program.methods]
    wanted = name or (DEFAULT if DEFAULT in names or len(names) != 1 else names[0])
    if wanted not in names:
        raise InvalidInput(f"no method {wanted!r}; the program has {', '.join(names) or 'none'}")
    return program.methods[names.index(wanted)]


def check_folder(file: Path | None, option: str) -> None:
    """That a file can be written there, before what goes into it takes its time."""
    if file is not None and not file.parent.is_dir():
        raise InvalidInput(f"{option} {file}: there is no folder {file.parent}; create it first")
    if file is not None and file.is_dir():
        raise InvalidInput(f"{option} {file} is a folder; name a file in it")


def declared(method: Method) -> tuple[list[Value], list[Value]]:
    """The values that a method takes and gives."""
    return [method.values[k] for k in method.inputs], [method.values[k] for k in method.outputs]


def readable(result: Any, value: Value) -> Any:
    """A result as NumPy can show it: bfloat16, which arrives as bits, becomes float32."""
    if isinstance(result, np.ndarray) and isinstance(value, Tensor) and value.dtype is DType.BF16:
        return to_device(result, DType.BF16, "output")
    return result


def writable(array: np.ndarray, value: Value) -> np.ndarray:
    """The inverse for inputs: where bfloat16 is wanted, float32 is rounded to it."""
    if isinstance(value, Tensor) and value.dtype is DType.BF16 and array.dtype == np.float32:
        return from_device(array, DType.BF16)
    return array


def summary(value: Any) -> dict[str, Any]:
    """dtype, shape, extremes, mean and first values of an array; a scalar is its value."""
    if not isinstance(value, np.ndarray):
        return {"dtype": type(value).__name__, "shape": None, "values": [value]}
    wide = value.astype(np.float64)
    found: dict[str, Any] = {"dtype": str(value.dtype), "shape": list(value.shape)}
    with np.errstate(all="ignore"):
        for name in ("min", "mean", "max"):
            found[name] = float(getattr(wide, name)()) if value.size else None
    return found | {"values": value.reshape(-1)[:FIRST].tolist()}


def values_text(value: Any) -> str:
    """The first values, with a mark where there are more."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    items = value.reshape(-1)[:FIRST].tolist()
    return " ".join(number(v) if isinstance(v, float) else str(v) for v in items) + (" …" if value.size > FIRST else "")
