"""Primitive operators: arithmetic on Python scalars, and questions about tensors that the host answers.

`PRIMS` maps registry names to kernels on scalars and arrays. None writes to its arguments: `et_copy_index` returns a
replacement of its first argument, `et_view` a view of its argument.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ExecutionError, ShapeError
from .promotion import axis, inferred
from .registry import Array, HostKernel, Number, afford, kernel_of


def sym_size(x: Array, dim: int) -> int:
    along = axis(dim, x.ndim)
    if x.ndim == 0:
        raise ExecutionError(f"a 0-d tensor has no dimension {dim}")
    return x.shape[along]


def sym_stride(x: Array, dim: int) -> int:
    """Return a stride of the contiguous tensor, in elements."""
    return math.prod(x.shape[axis(dim, x.ndim) + 1 :])


def sym_numel(x: Array) -> int:
    return x.size


def item(x: Array) -> Number:
    if x.size != 1:
        raise ExecutionError(f"a tensor of sizes {list(x.shape)} is not one item")
    return x.item()


def select_item(x: Array, dim: int, index: int) -> Number:
    """Return element `index` along a dimension, first in the others."""
    along = axis(dim, x.ndim)
    if not -x.shape[along] <= index < x.shape[along]:
        raise ExecutionError(f"index {index} is out of range for dimension {dim} of sizes {list(x.shape)}")
    return np.take(x, index, along).reshape(-1)[:1].item()


def et_view(x: Array, size: Sequence[int]) -> Array:
    return x.reshape(inferred(x, size))


def et_copy_index(copy_to: Array, copy_from: Array, index: int) -> Array:
    """Return the first `index` rows of `copy_to`, followed by `copy_from`."""
    if index < 0 or (index > 0 and copy_to.shape[1:] != copy_from.shape):
        raise ShapeError(f"sizes {list(copy_from.shape)} cannot be row {index} of sizes {list(copy_to.shape)}")
    afford((index + 1) * copy_from.size * copy_to.itemsize)
    result = np.zeros((index + 1, *copy_from.shape), copy_to.dtype)
    if index:
        result[: min(index, len(copy_to))] = copy_to[:index]
    result[index] = copy_from
    return result


def _in_64_bits(value: Number) -> Number:
    """Return the value; refuse larger ints, as a loop would make them grow without bound."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ExecutionError(f"an int of {value.bit_length()} bits does not fit 64")
    return value


def _unary(function: Callable[[Any], Number]) -> Callable[[Number], Number]:
    def kernel(a: Number) -> Number:
        return _in_64_bits(function(a))

    return kernel


def _binary(function: Callable[[Any, Any], Number]) -> Callable[[Number, Number], Number]:
    def kernel(a: Number, b: Number) -> Number:
        return _in_64_bits(function(a, b))

    return kernel


def _dividing(function: Callable[[Any, Any], Number]) -> Callable[[Number, Number], Number]:
    def kernel(a: Number, b: Number) -> Number:
        if b == 0:
            raise ExecutionError(f"division of {a} by zero")
        return _in_64_bits(function(a, b))

    return kernel


def _rounding(function: Callable[[Any], int]) -> Callable[[Number], int]:
    def kernel(a: Number) -> int:
        if not math.isfinite(a):
            raise ExecutionError(f"{a} is not an integer")
        return int(_in_64_bits(function(a)))

    return kernel


def _if_else(condition: Number, then: Number, otherwise: Number) -> Number:
    return then if condition else otherwise


_SCALAR: dict[str, Callable[..., Any]] = {
    "add": _binary(operator.add),
    "sub": _binary(operator.sub),
    "mul": _binary(operator.mul),
    "floordiv": _dividing(operator.floordiv),
    "truediv": _dividing(operator.truediv),
    "mod": _dividing(operator.mod),
    "eq": _binary(operator.eq),
    "ne": _binary(operator.ne),
    "gt": _binary(operator.gt),
    "lt": _binary(operator.lt),
    "ge": _binary(operator.ge),
    "le": _binary(operator.le),
    "neg": _unary(operator.neg),
    "sym_not": _unary(operator.not_),
    "sym_ite": _if_else,
    "sym_max": _binary(max),
    "sym_min": _binary(min),
    "sym_float": _unary(float),
    "sym_int": _rounding(int),
    "ceil": _rounding(math.ceil),
    "round": _rounding(round),
    "trunc": _rounding(math.trunc),
}

_BY_NAME: dict[str, Callable[..., Any]] = {
    **_SCALAR,  # as delegates name them
    "sym_size.int": sym_size,
    **{f"executorch_prim.{name}.Scalar": function for name, function in _SCALAR.items()},
    "executorch_prim.floordiv.int": _SCALAR["floordiv"],
    "executorch_prim.mod.int": _SCALAR["mod"],
    "executorch_prim.et_view.default": et_view,
    "executorch_prim.et_copy_index.tensor": et_copy_index,
    "aten.sym_size.int": sym_size,
    "aten.sym_stride.int": sym_stride,
    "aten.sym_numel.default": sym_numel,
    "aten._local_scalar_dense.default": item,
    "et_vk.select_as_symint.default": select_item,
}

PRIMS: dict[str, HostKernel] = {name: kernel_of(name, function) for name, function in _BY_NAME.items()}
