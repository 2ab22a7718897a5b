"""Operators that make tensors from sizes and scalars. The dtype is the declared output's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import ExecutionError
from .registry import Array, Number, Options, OutSpec, afford, cast, portable

_random = np.random.default_rng()


@portable("aten.full.default", sizes=lambda size, *_: size)
def full(size: Sequence[int], value: Number, options: Options = None, *, outs: Sequence[OutSpec]) -> Array:
    return np.full(tuple(size), cast(value, outs[0].numpy))


@portable("aten.full_like.default")
def full_like(
    x: Array, value: Number, options: Options = None, memory_format: Any = None, *, outs: Sequence[OutSpec]
) -> Array:
    return full(x.shape, value, outs=outs)


@portable("aten.zeros.default", sizes=lambda size, *_: size)
def zeros(size: Sequence[int], options: Options = None, *, outs: Sequence[OutSpec]) -> Array:
    return np.zeros(tuple(size), outs[0].numpy)


@portable("aten.empty.memory_format", "dim_order_ops._empty_dim_order.default", sizes=lambda size, *_: size)
def empty(size: Sequence[int], options: Options = None, order: Any = None, *, outs: Sequence[OutSpec]) -> Array:
    return zeros(size, outs=outs)


@portable("aten.ones.default", sizes=lambda size, *_: size)
def ones(size: Sequence[int], options: Options = None, *, outs: Sequence[OutSpec]) -> Array:
    return np.ones(tuple(size), outs[0].numpy)


@portable("aten.scalar_tensor.default")
def scalar_tensor(value: Number, options: Options = None, *, outs: Sequence[OutSpec]) -> Array:
    """Refuse ints that do not fit: ExecuTorch's exporter makes int32 of every symbolic int that meets a tensor."""
    if outs[0].dtype is DType.I32 and isinstance(value, int) and not -(2**31) <= value < 2**31:
        raise ExecutionError(
            f"the int {value} does not fit the int32 that the program stores it in: export the module with ptegpu, "
            "which stores such ints in 64 bits"
        )
    return cast(value, outs[0].numpy)


@portable("aten.fill.Scalar", "aten.fill.Tensor")
def fill(x: Array, value: Array | Number) -> Array:
    return np.broadcast_to(cast(value, x.dtype), x.shape)


@portable("aten.arange.start_step")
def arange(start: Number, end: Number, step: Number = 1, options: Options = None, *, outs: Sequence[OutSpec]) -> Array:
    if outs[0].dtype is DType.I64:
        start, end, step = int(start), int(end), int(step)
    if step == 0 or (end - start) * step < 0:
        raise ExecutionError(f"no range goes from {start} to {end} by {step}")
    afford(8 * math.ceil((end - start) / step))
    if all(isinstance(v, int) for v in (start, end, step)):
        return np.arange(int(start), int(end), int(step), dtype=np.int64)
    return start + np.arange(math.ceil((end - start) / step)) * float(step)


@portable("aten.arange.default")
def arange_to(end: Number, options: Options = None, *, outs: Sequence[OutSpec]) -> Array:
    return arange(0, end, outs=outs)


def _triangle(name: str, indices: Callable[[int, int, int], tuple[Array, Array]]) -> None:
    @portable(f"aten.{name}.default")
    def kernel(row: int, col: int, offset: int = 0, options: Options = None) -> Array:
        afford(16 * row * col)
        return np.stack(indices(row, offset, col))


_triangle("tril_indices", np.tril_indices)
_triangle("triu_indices", np.triu_indices)


@portable("aten.rand.default", random=True, sizes=lambda size, *_: size)
def rand(size: Sequence[int], options: Options = None) -> Array:
    return _random.random(tuple(size))


@portable("aten.randn.default", random=True, sizes=lambda size, *_: size)
def randn(size: Sequence[int], options: Options = None) -> Array:
    return _random.standard_normal(tuple(size))


@portable("aten.native_dropout.default", random=True)
def native_dropout(x: Array, p: float, train: bool | None) -> tuple[Array, Array]:
    if train is False:
        return x, np.ones(x.shape, bool)
    mask = _random.random(x.shape) >= p
    return np.where(mask, x * (1 / (1 - p) if p < 1 else 0), 0), mask
