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
from ..plan.plan import VALUES, Bound, Expr, Number, Plan

Value = Callable[[Number], int]


def check(
    plan: Plan, bounds: Sequence[Bound], inputs: Sequence[Any], value: Value, late: Callable[[Number], Any]
) -> None:
    """Raise IndexOutOfRange for the first value that is outside; tensors on the device are not looked at.

    `value` gives numbers at the sizes of the run; `late` those that only a message needs.
    """
    extremes: dict[tuple[str, Any], tuple[int, int] | None] = {}
    for bound in bounds:
        low, end = value(bound.low), value(bound.end)
        if bound.kind == "int":
            position = value(bound.source)
            if not low <= position < end:
                raise IndexOutOfRange(f"{_told(bound, position)} {_range(bound, low, end)}")
            continue
        key = (bound.kind, bound.source)
        if key not in extremes:
            array = _array(plan, bound, inputs)
            extremes[key] = (int(array.min()), int(array.max())) if array is not None and array.size else None
        found = extremes[key]
        if found is not None and not (found[0] >= low and found[1] < end):
            array = _array(plan, bound, inputs)
            assert array is not None
            outside = _first_outside(bound, array, low, end, late)
            if outside:
                raise IndexOutOfRange(f"{_told(bound, *outside)} {_range(bound, low, end)}")


def fixed(bound: Bound) -> bool:
    """Whether it is the same in every call, and all elements of its source count."""
    return not any(isinstance(n, Expr) for n in (bound.low, bound.end)) and all(m.op == "view" for m in bound.moves)


def _array(plan: Plan, bound: Bound, inputs: Sequence[Any]) -> np.ndarray | None:
    if bound.kind == "input":
        given = inputs[bound.source]  # type: ignore[index]
        return given if isinstance(given, np.ndarray) else None
    buffer = plan.buffers[bound.source]  # type: ignore[index]
    if buffer.blob is None or bound.dtype is None:
        return None
    data = np.frombuffer(plan.blobs[buffer.blob], bound.dtype.numpy)
    return data.reshape(bound.shape)


def _first_outside(
    bound: Bound, array: np.ndarray, low: int, end: int, late: Callable[[Number], Any]
) -> tuple[int, list[int]] | None:
    """The first value of the source that reaches the index and is out of range, and its place in the source."""
    reaching = np.arange(array.size).reshape(array.shape)  # positions in the source, moved like the values
    for move in () if all(m.op == "view" for m in bound.moves) else bound.moves:
        if move.op == "view":
            shape = [late(n) for n in move.shape]
            if min(shape, default=0) < 0 or math.prod(shape) != reaching.size:
                raise InvalidProgram(f"an index of {bound.node} cannot have the shape {shape}")
            reaching = reaching.reshape(shape)
        else:
            from ..portable import OutSpec, call

            args = [_plain(a, reaching, late) for a in move.args]
            reaching = call(move.op, args, [OutSpec(DType.I64)] * move.results)[move.number]
    if reaching.size and not 0 <= reaching.min() <= reaching.max() < array.size:
        raise InvalidProgram(f"an index of {bound.node} is moved by what computes")
    values = array.reshape(-1)[reaching.reshape(-1)]
    outside = np.flatnonzero((values < low) | (values >= end))
    if not outside.size:
        return None
    place = np.unravel_index(reaching.reshape(-1)[outside[0]], array.shape)
    return int(values[outside[0]]), [int(k) for k in place]


def _plain(a: Any, positions: np.ndarray, late: Callable[[Number], Any]) -> Any:
    if isinstance(a, tuple):
        return [_plain(x, positions, late) for x in a]
    return positions if a == VALUES and isinstance(a, str) else late(a) if isinstance(a, Expr) else a


def _told(bound: Bound, *values: object) -> str:
    text = bound.text
    for value in values:
        text = text.replace("{}", str(value), 1)
    return text


def _range(bound: Bound, low: int, end: int) -> str:
    return f"is out of range for {bound.node}, which takes {low} to {end - 1}"
