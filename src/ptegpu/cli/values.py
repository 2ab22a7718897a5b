"""The inputs and outputs that a file declares for a method, and arrays summed up for a reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import typer

from ..dtypes import DType
from ..errors import InvalidInput
from ..format import FileMethod, FileTensor, Value
from ..models.door import ProgramSource
from ..plan import from_device, to_device
from ..units import number

FIRST = 6  # values shown of an output


def methods_of(source: ProgramSource) -> list[FileMethod]:
    """Return the methods that a program can run: those of a bundle that were compiled."""
    bundle = source.bundle
    return [m for m in source.file.methods if bundle is None or m.name in bundle.methods[0]]


def find_method(source: ProgramSource, name: str | None) -> FileMethod:
    """Return the method of that name, or by default `forward` or the program's only method."""
    methods = {method.name: method for method in methods_of(source)}
    chosen = name or ("forward" if "forward" in methods or len(methods) != 1 else next(iter(methods)))
    if chosen not in methods:
        raise InvalidInput(f"no method {chosen!r}; the program has {', '.join(methods) or 'none'}")
    return methods[chosen]


def check_output(file: Path | None, option: str, *suffixes: str) -> None:
    """Raise unless a file can be written there and has one of these suffixes, before the work that produces it."""
    if file is None:
        return
    if suffixes and file.suffix.lower() not in suffixes:
        *others, last = suffixes
        raise typer.BadParameter(f"{file} must end in {', '.join(others)} or {last}", param_hint=option)
    if not file.parent.is_dir():
        raise InvalidInput(f"{option} {file}: there is no folder {file.parent}; create it first")
    if file.is_dir():
        raise InvalidInput(f"{option} {file} is a folder; name a file in it")


def declared(method: FileMethod) -> tuple[list[Value], list[Value]]:
    """Return the inputs and outputs of a method."""
    return [method.values[k] for k in method.inputs], [method.values[k] for k in method.outputs]


def readable(result: Any, value: Value) -> Any:
    """Return a result as NumPy can show it: bfloat16, which arrives as bits, becomes float32."""
    if isinstance(result, np.ndarray) and isinstance(value, FileTensor) and value.dtype is DType.BF16:
        return to_device(result, DType.BF16, "output")
    return result


def writable(array: np.ndarray, value: Value) -> np.ndarray:
    """Round float32 to bfloat16 for an input that takes bfloat16: the inverse of `readable`."""
    if isinstance(value, FileTensor) and value.dtype is DType.BF16 and array.dtype == np.float32:
        return from_device(array, DType.BF16)
    return array


def summary(value: Any) -> dict[str, Any]:
    """Return dtype, shape, extremes, mean and first values of an array, or a scalar's value."""
    if not isinstance(value, np.ndarray):
        return {"dtype": type(value).__name__, "shape": None, "values": [value]}
    wide = value.astype(np.float64)
    with np.errstate(all="ignore"):
        figures = {name: float(getattr(wide, name)()) if value.size else None for name in ("min", "mean", "max")}
    first = value.reshape(-1)[:FIRST].tolist()
    return {"dtype": str(value.dtype), "shape": list(value.shape), **figures, "values": first}


def values_text(value: Any) -> str:
    """Return the first values, with a mark if there are more."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    items = value.reshape(-1)[:FIRST].tolist()
    return " ".join(number(v) if isinstance(v, float) else str(v) for v in items) + (" …" if value.size > FIRST else "")
