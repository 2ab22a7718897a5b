"""Tensors made from scalars. Their dtype is that of the declared output."""

from __future__ import annotations

import math
from typing import Any

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Shape, Tensor
from ..plan.target import Target
from ..sizes import Size
from . import prefix_stable, spans
from .pointwise import pointwise
from .registry import Number, Options, Out, Steps, define, op

VALUE = spans.elements("value")


def filled(shape: Shape, value: Number, target: Target) -> Steps:
    """Give every element of the output the same value."""
    if any(n < 0 for n in shape):
        raise ShapeError(f"{list(shape)} is not a shape")
    out = yield Out(shape)
    yield pointwise("fill", "a", [value], out, target)


@op("aten.full.default", wide=True, span=VALUE, prefix=prefix_stable.filled)
def full(size: list[int], value: Number, options: Options = None, *, target: Target) -> Steps:
    yield from filled(tuple(size), value, target)


@op("aten.full_like.default", wide=True, span=VALUE, prefix=prefix_stable.like)
def full_like(x: Tensor, value: Number, options: Options = None, memory_format: Any = None, *, target: Target) -> Steps:
    yield from filled(x.shape, value, target)


@op("aten.fill.Scalar", wide=True)
def fill_scalar(x: Tensor, value: Number, *, target: Target) -> Steps:
    yield from filled(x.shape, value, target)


@op("aten.fill.Tensor", wide=True)
def fill_tensor(x: Tensor, value: Tensor, *, target: Target) -> Steps:
    if value.shape:
        raise ShapeError(f"the fill value has shape {list(value.shape)}; it must be a scalar")
    out = yield Out(x.shape)
    yield pointwise("fill", "a", [value], out, target, compute=out.dtype)


@op("aten.scalar_tensor.default", wide=True, span=VALUE)
def scalar_tensor(value: Number, options: Options = None, *, target: Target) -> Steps:
    yield from filled((), value, target)


def constant(name: str, value: int) -> None:
    """Register `name`, from a size, and `name_like`, from a tensor, filled with the value."""

    def of_size(size: list[int], options: Options = None, *, target: Target) -> Steps:
        yield from filled(tuple(size), value, target)

    def of_tensor(x: Tensor, options: Options = None, memory_format: Any = None, *, target: Target) -> Steps:
        yield from filled(x.shape, value, target)

    if name != "aten.empty":  # which takes a memory format
        define([f"{name}.default"], of_size, "steps", wide=True, prefix=prefix_stable.filled)
    define([f"{name}_like.default"], of_tensor, "steps", wide=True, prefix=prefix_stable.like)


constant("aten.zeros", 0)
constant("aten.ones", 1)
constant("aten.empty", 0)


@op("aten.empty.memory_format", wide=True)
def empty(size: list[int], options: Options = None, order: Any = None, *, target: Target) -> Steps:
    yield from filled(tuple(size), 0, target)


def stepped(start: Number, end: Number, step: Number, dtype: DType, target: Target) -> Steps:
    """Count from `start` to before `end`, in ints if the output's dtype is one."""
    if not dtype.is_float:
        start, end, step = (x if isinstance(x, Size) else int(x) for x in (start, end, step))
    if not step or (end - start) / step < 0:
        raise InvalidProgram(f"arange cannot go from {start} to {end} in steps of {step}")
    integral = not any(isinstance(x, float) for x in (start, end, step))
    count: Any = -(-(end - start) // step) if integral else math.ceil((end - start) / step)
    out = yield Out((count,))
    number = "f32(i)" if dtype.is_float else "i32(i)"
    yield pointwise("arange", f"a + {number} * b", [start, step], out, target)


@op("aten.arange.start_step", wide=True, span=spans.stepped, prefix=prefix_stable.counted)
def arange(
    start: Number, end: Number, step: Number = 1, options: Options = None, *, outs: tuple[Tensor, ...], target: Target
) -> Steps:
    """Convert start, end and step to ints if the result's dtype is one.

    Unlike PyTorch, which does so only for int64 and otherwise repeats the start, it refuses a step that becomes 0: on
    the GPU, int64 is int32.
    """
    yield from stepped(start, end, step, outs[0].dtype, target)


@op("aten.arange.default", wide=True, span=spans.stepped, prefix=prefix_stable.counted)
def arange_to(end: Number, options: Options = None, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    yield from stepped(0, end, 1, outs[0].dtype, target)
