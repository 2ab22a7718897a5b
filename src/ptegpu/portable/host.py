"""One call on the host: a NumPy kernel or a primitive, its results as the program declares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import ExecutionError, InvalidProgram, PtegpuError, UnsupportedProgram
from ..graph.linear import Call, Operand, Var
from ..graph.narrow import from_device
from ..ops import REGISTRY
from ..ops.registry import Traits
from ..ops.schema import Schema
from . import PORTABLE, PRIMS, OutSpec, call
from .registry import NONE


def on_host(c: Call) -> bool:
    """Whether there is a NumPy kernel or a primitive for it."""
    return c.op in PRIMS or c.op in PORTABLE


def schema_of(op: str) -> Schema | None:
    """What an operator takes, wherever it runs; None if nobody has it."""
    kernel = PORTABLE.get(op) or PRIMS.get(op)
    return REGISTRY.get(op) or (kernel.schema if kernel else None)


def facts_of(op: str) -> Traits:
    """Return what others may rely on about an operator, wherever it runs."""
    return REGISTRY.get(op) or (PORTABLE[op].facts if op in PORTABLE else NONE)


def operands(c: Call) -> dict[str, Operand]:
    """Return the arguments of a call by the names of its operator's parameters; empty if nobody has it."""
    schema = schema_of(c.op)
    return schema.operands(c.args) if schema else {}


def run(c: Call, args: Sequence[Any]) -> list[Any]:
    """The results for arguments that were `seen`; ExecutionError if it fails."""
    try:
        if c.op in PRIMS:
            results = [PRIMS[c.op](*args)]
        else:
            specs = [OutSpec(_dtype(o), o.sizes, tuple(range(len(o.sizes)))) for o in c.outs]
            results = call(c.op, args, specs)
    except PtegpuError as e:
        raise type(e)(f"{c.where}: {e}") from e
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as e:
        # a primitive, for values that make no sense
        raise ExecutionError(f"{c.where} failed: {e}") from e
    if len(results) != len(c.outs):
        raise InvalidProgram(f"{c.where} cannot have {len(c.outs)} results")
    return [_declared(c, v, r) for v, r in zip(c.outs, results)]


def _declared(c: Call, v: Var, result: Any) -> Any:
    if v.dtype is None:
        return result
    if not isinstance(result, np.ndarray):
        raise InvalidProgram(f"{c.where} gives a number, the program says a tensor")
    array = np.asarray(result, dtype=v.dtype.numpy if v.dtype is not DType.BF16 else np.float32)
    if array.ndim != len(v.sizes) or any(n > m for n, m in zip(array.shape, v.sizes, strict=True)):
        limit = f"the program allows at most {list(v.sizes)}"
        raise ExecutionError(f"{c.where}: its result is {list(array.shape)}, {limit}")
    return from_device(array, DType.BF16) if v.dtype is DType.BF16 else array


def _dtype(v: Var) -> DType:
    if v.dtype is None:
        raise UnsupportedProgram(f"{v.name} would have to hold a scalar result of a tensor operator")
    return v.dtype
