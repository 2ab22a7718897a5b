"""Binary search in sorted sequences."""

from __future__ import annotations

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Tensor
from ..kernels.search import search
from ..plan.target import Target
from .pointwise import by_quad
from .registry import Out, Steps, op


def _searched(values: Tensor, sequence: Tensor, right: bool, sorter: Tensor | None, target: Target) -> Steps:
    """Search for all values in a vector, or for each row of values in its own sequence."""
    vector = sequence.rank == 1
    if not vector and (sequence.rank == 0 or sequence.shape[:-1] != values.shape[:-1] or values.rank == 0):
        raise ShapeError(f"values of {list(values.shape)} do not fit sequences of {list(sequence.shape)}")
    if sorter is not None and sorter.shape != sequence.shape:
        raise ShapeError(f"a sorter of {list(sorter.shape)} does not fit sequences of {list(sequence.shape)}")
    out = yield Out(values.shape, DType.I32)
    length = sequence.shape[-1]
    floating = values.dtype.is_float or sequence.dtype.is_float
    compute = DType.F32 if floating else DType.I32
    kernel = search(values.dtype, sequence.dtype, compute, right, sorter is not None, target)
    count = max(values.numel, 1) if vector else values.shape[-1]
    params = {"n": out.numel, "count": count, "apart": 0 if vector else length, "length": length}
    yield by_quad(kernel, [values, sequence, *([sorter] if sorter else [])], out, params)


@op("aten.searchsorted.Tensor", wide=True, fits="sequence number, sorter int32")
def searchsorted(
    sequence: Tensor,
    values: Tensor,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    *,
    target: Target,
) -> Steps:
    """Return the insertion position of each value: before its equals or, with `right`, after them."""
    if side not in (None, "left", "right"):
        raise InvalidProgram(f"invalid side '{side}': expected left or right")
    yield from _searched(values, sequence, right if side is None else side == "right", sorter, target)


@op("aten.bucketize.Tensor", wide=True, fits="values number, boundaries [_]")
def bucketize(
    values: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False, *, target: Target
) -> Steps:
    yield from _searched(values, boundaries, right, None, target)
