"""Where values belong in sequences that are in order."""

from __future__ import annotations

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Tensor
from ..kernels.search import search
from ..plan.target import Target
from .registry import Dispatch, Out, Steps, op


def _found(values: Tensor, sequence: Tensor, right: bool, sorter: Tensor | None, target: Target) -> Steps:
    """The steps that search; all values share a vector, otherwise each row of values has one of the sequences."""
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
    groups = -(-out.numel // (4 * kernel.kernel.workgroup))
    yield Dispatch(kernel, [values, sequence, *([sorter] if sorter else [])], [out], groups, params)


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
    """Where in a sequence each value belongs: before those that equal it or, to the `right`, behind them."""
    if side not in (None, "left", "right"):
        raise InvalidProgram(f"side '{side}' is neither left nor right")
    yield from _found(values, sequence, right if side is None else side == "right", sorter, target)


@op("aten.bucketize.Tensor", wide=True, fits="values number, boundaries [_]")
def bucketize(
    values: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False, *, target: Target
) -> Steps:
    """The bucket of each value between boundaries."""
    yield from _found(values, boundaries, right, None, target)
