"""Lookup of rows in tables of floats, ints or packed 4-bit ints.

Tables may come in parts. Each part, or each pair of overlapping parts of a 4-bit table and its scales, is a dispatch
that writes the rows it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels import embedding as kernels
from ..kernels.wgsl import store_type
from ..plan.target import Target
from ..sizes import smallest
from .pointwise import cast
from .registry import Bounded, Dispatch, Out, Scratch, Steps, op


def rows(a: Mapping[str, Any]) -> Iterable[Bounded]:
    """Return the bounds of the indices, which are rows of the table."""
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
    """Look up rows of a weight (V, D) by indices of any shape. The other arguments affect gradients only.

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
    kernel = kernels.embedding(weight.dtype, indices.dtype, written, lanes, target)
    n = out.numel // lanes
    for first, part in weight.parts or ((0, weight),):
        params = {"n": n, "width": width // lanes, "total": total, "first": first, "rows": part.shape[0]}
        needed = smallest(part.nbytes, out.nbytes) + indices.nbytes
        yield Dispatch(kernel, [part, indices], [y], -(-n // kernel.kernel.workgroup), params, read_bytes=needed)
    if y is not out:
        yield cast(y, out, target)


Q4_TABLE = "weight int8|uint8[v, _], weight_scales float, indices int -> float"


def lookup(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, group: int, indices: Tensor, high_first: bool, target: Target
) -> Steps:
    """Look up rows of a weight (V, D / 2), with scales and zeros (V, D / group), or (V), or one for all rows."""
    total, width = weight.shape[0], 2 * weight.shape[1]
    if not total and indices.numel:
        raise ShapeError("the weight has no rows")
    scale_row, scale_group = _strides(scales, total, width, group)
    if zeros is not None and zeros.shape != scales.shape:
        raise ShapeError(f"zero points of shape {list(zeros.shape)} do not fit scales of shape {list(scales.shape)}")
    out = yield Out((*indices.shape, width))
    if not out.numel:
        return
    lanes = 4 if width % 4 == 0 else 1
    written = out.dtype if lanes == 4 else store_type(out.dtype, target)
    y = out if written is out.dtype else (yield Scratch(out.shape, written))
    dtypes = (weight.dtype, scales.dtype, zeros.dtype if zeros else None, indices.dtype, written)
    kernel = kernels.embedding_q4(*dtypes, lanes, high_first, target)
    groups = -(-out.numel // (lanes * kernel.kernel.workgroup))
    common = {"n": out.numel, "width": width, "total": total, "group": group}
    common |= {"scale_row": scale_row, "scale_group": scale_group}
    rows_needed = smallest(indices.numel, total)  # upper bound
    for w_first, w in weight.parts or ((0, weight),):
        for s_first, s in scales.parts or ((0, scales),):
            first = max(w_first, s_first)
            end = min(w_first + w.shape[0], s_first + s.shape[0] if scales.parts else total)
            if first < end:
                reads = [w, s, indices, *([zeros] if zeros else [])]
                params = {"first": first, "rows": end - first, "w_first": w_first, "s_first": s_first}
                tables = sum(t.nbytes for t in reads if t is not indices)
                needed = indices.nbytes + rows_needed * tables // max(total, 1)
                yield Dispatch(kernel, reads, [y], groups, common | params, read_bytes=needed)
    if y is not out:
        yield cast(y, out, target)


def _strides(scales: Tensor, total: int, width: int, group: int) -> tuple[int, int]:
    """Return the strides of the scales over rows and groups.

    If the scales belong to a linear layer, they are transposed and perhaps padded.
    """
    shape = scales.shape
    if scales.numel == 1 and group >= width:
        return 0, 0
    if shape == (total,) and group >= width:
        return 1, 0
    if group > 0 and len(shape) == 2 and not scales.parts:
        if shape[0] * group == width and shape[1] >= total and shape[0] != total:
            return 1, shape[1]
    if group > 0 and len(shape) == 2 and shape[0] == total and shape[1] * group >= width:
        return shape[1], 1
    raise ShapeError(f"scales of shape {list(shape)} do not fit {total} rows of {width} in groups of {group}")


@op("et_vk.embedding_q4gsw.default", splits=("weight", "weight_scales"), wide=True, indexes=rows, fits=Q4_TABLE)
def embedding_q4gsw(
    weight: Tensor,
    weight_scales: Tensor,
    group_size: int,
    indices: Tensor,
    is_linear_weight: bool = False,
    *,
    target: Target,
) -> Steps:
    """Look up rows with even elements in the low half of a byte if a linear layer shares the weight, else in the high.

    Unlike PyTorch, which raises, indices that the GPU computed take the nearest row if they are out of range: checking
    them would need a read back. Others raise.
    """
    yield from lookup(weight, weight_scales, None, group_size, indices, not is_linear_weight, target)


@op(
    "quantized_decomposed.embedding_4bit.default",
    "quantized_decomposed.embedding_4bit.dtype",
    splits=("weight",),
    wide=True,
    indexes=rows,
    fits="weight int8|uint8[v, _], weight_scales float, weight_zero_points number, indices int -> float",
)
def embedding_4bit(
    weight: Tensor,
    weight_scales: Tensor,
    weight_zero_points: Tensor | None,
    weight_quant_min: int,
    weight_quant_max: int,
    indices: Tensor,
    dtype: Any = None,
    *,
    target: Target,
) -> Steps:
    """Look up rows with a scale and a zero point per row, or with scales and zero points (V, groups).

    Unlike PyTorch, which raises, indices that the GPU computed take the nearest row if they are out of range: checking
    them would need a read back. Others raise.
    """
    width = 2 * weight.shape[-1]
    groups = weight_scales.shape[1] if weight_scales.rank == 2 else 1
    if not groups or width % groups:
        raise ShapeError(f"{groups} groups do not divide {width} columns")
    yield from lookup(weight, weight_scales, weight_zero_points, width // groups or 1, indices, True, target)
