"""PyTorch's rules for dtypes (promotion, computation, accumulation) and for dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from ..errors import ExecutionError, ShapeError
from .registry import Array, Number, OutSpec, cast

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def result_type(*operands: Array | Number | None) -> np.dtype:
    """Return the common dtype: tensors decide; 0-d tensors, then scalars, count only if of a higher category."""
    arrays = [o for o in operands if isinstance(o, np.ndarray)]
    scalars = [_of_scalar(o) for o in operands if o is not None and not isinstance(o, np.ndarray)]
    groups = ([a.dtype for a in arrays if a.ndim], [a.dtype for a in arrays if not a.ndim], scalars)
    common, *lower = [reduce(promote, group) for group in groups if group]
    for dtype in lower:
        if _CATEGORY[dtype.kind] > _CATEGORY[common.kind]:
            common = dtype
    return common


def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """Return the smallest dtype for both. Unlike in NumPy, a float keeps its width next to any integer."""
    if _CATEGORY[a.kind] == _CATEGORY[b.kind] or "c" in (a.kind, b.kind):
        return np.promote_types(a, b)
    return a if _CATEGORY[a.kind] > _CATEGORY[b.kind] else b


def _of_scalar(value: Number) -> np.dtype:
    if isinstance(value, bool):
        return np.dtype(bool)
    return np.dtype(np.int64) if isinstance(value, int) else FLOAT32


def compute_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype for arithmetic: float16 is widened."""
    return FLOAT32 if dtype == np.float16 else dtype


def float_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype for functions with fractional results."""
    return compute_type(dtype) if dtype.kind in "fc" else FLOAT32


def to(value: Array | Number, dtype: np.dtype) -> Array:
    """Return an array or a scalar as `dtype`; integers wrap around."""
    return value.astype(dtype, copy=False) if isinstance(value, np.ndarray) else cast(value, dtype)


def promoted(*operands: Any) -> tuple[Array, ...]:
    """Return operands in their common dtype for arithmetic; float16 results are rounded once, when stored."""
    dtype = compute_type(result_type(*operands))
    return tuple(to(o, dtype) for o in operands)


def floats(*operands: Any) -> tuple[Array, ...]:
    """Return operands in their common floating-point dtype for arithmetic."""
    dtype = float_type(result_type(*operands))
    return tuple(to(o, dtype) for o in operands)


def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the dtype for sums: float64 for floats, int64 for integers."""
    return FLOAT64 if dtype.kind == "f" else dtype if dtype.kind == "c" else np.dtype(np.int64)


def result_accumulator(outs: Sequence[OutSpec]) -> np.dtype:
    """Return the accumulator for the declared result."""
    return accumulator(outs[0].numpy)


def axis(dim: int, rank: int) -> int:
    """Return a dimension counted from the front; a 0-d tensor counts as having one."""
    size = max(rank, 1)
    if not -size <= dim < size:
        raise ExecutionError(f"dimension {dim} is out of range for rank {rank}")
    return dim % size


def axes(dims: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return the dimensions to reduce: all if none are named; none of a 0-d tensor."""
    if not dims:
        return tuple(range(rank))
    reduced = tuple(axis(d, rank) for d in dims)
    if len(set(reduced)) != len(reduced):
        raise ExecutionError(f"dimensions {list(dims)} repeat")
    return reduced if rank else ()


def at_least_1d(x: Array) -> Array:
    """Return a 0-d tensor as a vector of one element, for operators that accept its dimension 0."""
    return x.reshape(1) if x.ndim == 0 else x


def inferred(x: Array, size: Sequence[int]) -> list[int]:
    """Return the sizes of a view, with -1 replaced by the remaining elements."""
    sizes = list(size)
    rest = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) == 1 and rest:
        sizes[sizes.index(-1)] = x.size // rest
    if -1 in sizes or math.prod(sizes) != x.size:
        raise ShapeError(f"a tensor of sizes {list(x.shape)} cannot be viewed as {list(size)}")
    return sizes
