"""Indices out of range, where the host knows them before a run: a plan's bounds, checked.

A call costs a minimum and a maximum per input that is used as an index, and a comparison per symbolic int. Only where
one of these is outside is it worth finding out which element reaches an index, and what to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import IndexOutOfRange, InvalidProgram
from ..plan.device_arrays import span
from ..plan.plan import VALUES, Bound, Expr, Number, Plan

Value = Callable[[Number], int]


class IndexBounds:
    """Bounds of a plan at the sizes of a run."""

    def __init__(self, plan: Plan, bounds: Sequence[Bound], value: Value) -> None:
        self.plan = plan
        self.inputs: dict[int, list[tuple[int, int, Bound]]] = {}
        self.ints: list[tuple[Number, int, int, Bound]] = []
        self.broken: list[tuple[np.ndarray, int, int, Bound]] = []  # constants that may be out of range
        for bound in bounds:
            low, end = value(bound.low), value(bound.end)
            if bound.kind == "int":
                self.ints.append((bound.source, low, end, bound))
            elif bound.kind == "input":
                self.inputs.setdefault(bound.source, []).append((low, end, bound))  # type: ignore[arg-type]
            else:
                array = _constant(plan, bound)
                if array.size and not (array.min() >= low and array.max() < end):
                    self.broken.append((array, low, end, bound))

    def check(self, inputs: Sequence[Any], value: Value) -> None:
        """Raise IndexOutOfRange for the first value that is outside; tensors on the device are not looked at.

        `value` gives numbers, also those that only a message needs.
        """
        for array, low, end, bound in self.broken:
            _raise_outside(bound, array, low, end, value)
        for position, bounds in self.inputs.items():
            given = inputs[position]
            if isinstance(given, np.ndarray) and given.size:
                least, most = span(given)
                for low, end, bound in bounds:
                    if not (least >= low and most < end):
                        _raise_outside(bound, given, low, end, value)
        for source, low, end, bound in self.ints:
            number = value(source)
            if not low <= number < end:
                raise IndexOutOfRange(f"{_told(bound, number)} {_range(bound, low, end)}")


def distinct(bounds: Sequence[Bound]) -> list[Bound]:
    """Drop duplicate checks."""
    found: dict[tuple[object, ...], Bound] = {}
    for b in bounds:
        found.setdefault((b.kind, b.source, b.low, b.end, b.moves), b)
    return list(found.values())


def fixed(bound: Bound) -> bool:
    """Return whether a bound is the same in every call, and all elements of its source count."""
    return not any(isinstance(n, Expr) for n in (bound.low, bound.end)) and all(m.op == "view" for m in bound.moves)


def _constant(plan: Plan, bound: Bound) -> np.ndarray:
    buffer = plan.buffers[bound.source]  # type: ignore[index]
    assert buffer.blob is not None and bound.dtype is not None
    return np.frombuffer(plan.blobs[buffer.blob], bound.dtype.numpy).reshape(bound.shape)


def _raise_outside(bound: Bound, array: np.ndarray, low: int, end: int, value: Value) -> None:
    """Raise for the first element that reaches the index and is outside, if one does."""
    outside = _first_outside(bound, array, low, end, value)
    if outside:
        raise IndexOutOfRange(f"{_told(bound, *outside)} {_range(bound, low, end)}")


def _first_outside(bound: Bound, array: np.ndarray, low: int, end: int, value: Value) -> tuple[int, list[int]] | None:
    """Return the first value of the source that reaches the index and is out of range, and its place there."""
    reaching = np.arange(array.size).reshape(array.shape)  # positions in the source, moved like the values
    for move in () if all(m.op == "view" for m in bound.moves) else bound.moves:
        if move.op == "view":
            shape = [value(n) for n in move.shape]
            if min(shape, default=0) < 0 or math.prod(shape) != reaching.size:
                raise InvalidProgram(f"an index of {bound.node} cannot have the shape {shape}")
            reaching = reaching.reshape(shape)
        else:
            from ..portable import OutSpec, call

            args = [_plain(a, reaching, value) for a in move.args]
            reaching = call(move.op, args, [OutSpec(DType.I64)] * move.results)[move.number]
    if reaching.size and not 0 <= reaching.min() <= reaching.max() < array.size:
        raise InvalidProgram(f"an index of {bound.node} is moved by what computes")
    values = array.reshape(-1)[reaching.reshape(-1)]
    outside = np.flatnonzero((values < low) | (values >= end))
    if not outside.size:
        return None
    place = np.unravel_index(reaching.reshape(-1)[outside[0]], array.shape)
    return int(values[outside[0]]), [int(k) for k in place]


def _plain(a: Any, positions: np.ndarray, value: Value) -> Any:
    if isinstance(a, tuple):
        return [_plain(x, positions, value) for x in a]
    return positions if a == VALUES and isinstance(a, str) else value(a) if isinstance(a, Expr) else a


def _told(bound: Bound, *values: object) -> str:
    text = bound.text
    for value in values:
        text = text.replace("{}", str(value), 1)
    return text


def _range(bound: Bound, low: int, end: int) -> str:
    return f"is out of range for {bound.node}, which takes {low} to {end - 1}"
