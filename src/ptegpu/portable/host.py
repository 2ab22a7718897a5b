"""One call on the host: a NumPy kernel or a primitive, with results as the program declares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import ExecutionError, InvalidProgram, PtegpuError, UnsupportedProgram
from ..plan.device_arrays import from_device
from ..plan.method import Call, Var
from . import PORTABLE, PRIMS, OutSpec, call


def on_host(c: Call) -> bool:
    """Return True if a NumPy kernel or a primitive exists for the call."""
    return c.op in PRIMS or c.op in PORTABLE


def run(c: Call, args: Sequence[Any]) -> list[Any]:
    """Return the results of a call for values of its arguments; raise ExecutionError if it fails."""
    try:
        if c.op in PRIMS:
            results = [PRIMS[c.op](*args)]
        else:
            specs = [OutSpec(_dtype(o), o.sizes) for o in c.outs]
            results = call(c.op, args, specs)
    except PtegpuError as e:
        raise type(e)(f"{c.where}: {e}") from e
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as e:
        raise ExecutionError(f"{c.where} failed: {e}") from e
    if len(results) != len(c.outs):
        raise InvalidProgram(f"{c.where} cannot have {len(c.outs)} results")
    return [_declared(c, v, r) for v, r in zip(c.outs, results)]


def _declared(c: Call, v: Var, result: Any) -> Any:
    if v.dtype is None:
        return result
    if not isinstance(result, np.ndarray):
        raise InvalidProgram(f"{c.where} returned a number, but the program declares a tensor")
    array = np.asarray(result, dtype=v.dtype.numpy if v.dtype is not DType.BF16 else np.float32)
    if array.ndim != len(v.sizes) or any(n > m for n, m in zip(array.shape, v.sizes, strict=True)):
        limit = f"the program allows at most {list(v.sizes)}"
        raise ExecutionError(f"{c.where}: its result is {list(array.shape)}, {limit}")
    return from_device(array, DType.BF16) if v.dtype is DType.BF16 else array


def _dtype(v: Var) -> DType:
    if v.dtype is None:
        raise UnsupportedProgram(f"{v.name} would have to hold a scalar result of a tensor operator")
    return v.dtype
