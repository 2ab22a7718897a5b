"""Lookup of rows in a table, which may come in parts: each part is one dispatch that writes the rows it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels.embedding import embedding as kernel_of
from ..kernels.wgsl import store_type
from ..plan.target import Target
from ..sizes import smallest
from .pointwise import cast
from .registry import Bounded, Dispatch, Out, Scratch, Steps, op


def rows(a: Mapping[str, Any]) -> Iterable[Bounded]:
    """An index is a row of the table."""
    for total in a["weight"].shape[:1]:
        yield Bounded(a["indices"], 0, total)


@op(
    "aten.embedding.default",
    splits=("weight",),
    elements=("weight",),
    indexes=rows,
    fits="weight any[v, d], indices int",
)
def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    target: Target,
) -> Steps:
    """weight (V, D), indices of any shape. The other arguments matter to gradients only.

    Unlike PyTorch, which raises, indices that the GPU computed take the nearest row if they are out of range: checking
    them would need a read back. Others raise.
    """
    total, width = weight.shape
    if not total and indices.numel:
        raise ShapeError("the weight has no rows")
    out = yield Out((*indices.shape, width), weight.dtype)
    lanes = 4 if width % 4 == 0 else 1
    written = out.dtype if lanes == 4 else store_type(out.dtype, target)
    y = out if written is out.dtype else (yield Scratch(out.shape, written))
    kernel = kernel_of(weight.dtype, indices.dtype, written, lanes, target)
    n = out.numel // lanes
    for first, part in weight.parts or ((0, weight),):
        params = {"n": n, "width": width // lanes, "total": total, "first": first, "rows": part.shape[0]}
        needed = smallest(part.nbytes, out.nbytes) + indices.nbytes
        yield Dispatch(kernel, [part, indices], [y], -(-n // kernel.kernel.workgroup), params, read_bytes=needed)
    if y is not out:
        yield cast(y, out, target)
