"""Inputs of a plan: what callers may pass, their sizes, and what they must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ..errors import InvalidInput
from ..plan.numbers import Item, Shapes
from ..plan.plan import Input
from .tensor import DeviceTensor

Argument: TypeAlias = np.ndarray | DeviceTensor | int  # in the device's dtype
Points: TypeAlias = Sequence[Mapping[str, int]]  # sizes and ints by name: "input 0[1]"


def sizes_of(inputs: Sequence[Argument]) -> tuple[Shapes, Item]:
    """Return the shapes of inputs (ints: themselves), and how to read their elements."""

    def item(position: int, element: int) -> int:
        value = inputs[position]
        array = value.numpy() if isinstance(value, DeviceTensor) else np.asarray(value)
        return int(array.reshape(-1)[element]) if 0 <= element < array.size else 0  # guards decide without it

    return [x if isinstance(x, int) else x.shape for x in inputs], item


def sizes_at(inputs: Sequence[Input], point: Mapping[str, int]) -> Shapes:
    """Return the shapes of inputs at a point; a size that it does not name is as large as it can be, an int is 0."""
    return [
        tuple(point.get(f"{i.name}[{d}]", n) for d, n in enumerate(i.shape)) if i.dtype else point.get(i.name, 0)
        for i in inputs
    ]


def outgrows(shape: tuple[int, ...] | int, declared: Input) -> bool:
    """Return whether an input of this shape is too large for its buffer."""
    return not isinstance(shape, int) and declared.dynamic and any(map(int.__gt__, shape, declared.shape))


def check_fits(number: int, declared: Input, value: Argument) -> None:
    """Raise InvalidInput unless `value` can be input `number`."""
    if declared.dtype is None:
        if not isinstance(value, int):
            raise InvalidInput(f"input {number} ({declared.name}) must be an int, not {type(value).__name__}")
        return
    if isinstance(value, int):
        raise InvalidInput(f"input {number} ({declared.name}) must be a tensor, not the int {value}")
    dtype = value.dtype.numpy if isinstance(value, DeviceTensor) else value.dtype
    shape = tuple(value.shape)
    fits = shape == declared.shape or (
        declared.dynamic and len(shape) == len(declared.shape) and all(map(int.__le__, shape, declared.shape))
    )
    if dtype != declared.dtype.numpy or not fits:
        expected = f"{declared.dtype.value}{' of at most ' if declared.dynamic else ''}{list(declared.shape)}"
        raise InvalidInput(f"input {number} ({declared.name}) must be {expected}, not {dtype}{list(shape)}")
