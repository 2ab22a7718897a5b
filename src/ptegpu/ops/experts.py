"""Linear layers with several weights, of which each row takes its own: the experts of a mixture.

These operators are ptegpu's own; `ptegpu.export` writes them. A weight has the rows of all experts, one after the
other, and may come in parts: a dispatch serves the rows of one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels.experts import COLUMNS, WeightKind
from ..kernels.experts import experts as kernel_of
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .pointwise import cast
from .registry import Bounded, Dispatch, Out, Scratch, Steps, op
from .sort import topk


@op("ptegpu.top_experts.default", fits="x float[s, e]")
def top_experts(x: Tensor, k: int, *, target: Target) -> Steps:
    """The k largest of each row, in order, and where they are, int32."""
    yield from topk(x, k, target=target)


def _chosen(a: Mapping[str, Any]) -> Iterable[Bounded]:
    yield Bounded(a["experts"], 0, a["count"])


def _products(
    form: WeightKind,
    x: Tensor,
    weight: Tensor,
    scales: Tensor | None,
    experts: Tensor,
    count: int,
    group: int,
    target: Target,
) -> Steps:
    rows, packing = weight.shape[0], 2 if form == "halves" else 1
    if experts.rank != 2 or x.shape[:-1] not in (experts.shape[:1], experts.shape):
        raise ShapeError(f"experts of shape {list(experts.shape)} do not fit x of shape {list(x.shape)}")
    if count < 1 or rows % count or weight.shape[1] * packing != x.shape[-1]:
        raise ShapeError(f"a weight of shape {list(weight.shape)} is not that of {count} experts for {list(x.shape)}")
    n, k = rows // count, x.shape[-1]
    out = yield Out((*experts.shape, n), x.dtype)
    if not out.numel:
        return
    written = store_type(out.dtype, target)
    y = out if written is out.dtype else (yield Scratch(out.shape, written))
    quads = k % 4 == 0
    kernel = kernel_of(form, x.dtype, weight.dtype, scales.dtype if scales else None, written, quads, target)
    slots, blocks = experts.numel, -(-n // COLUMNS)
    share = 1 if x.rank == 3 else experts.shape[1]
    params = {"n": n, "k": k, "blocks": blocks, "count": count, "share": share}
    if form == "halves":
        params |= {"group": group, "stride": rows}
    needed = slots * n * weight.shape[1] * weight.dtype.size + x.nbytes
    for first, part in weight.parts or ((0, weight),):
        reads = [x, part, experts, *([scales] if scales else [])]
        span = {"first": first, "rows": part.shape[0]}
        flops = 2 * slots * n * k
        yield Dispatch(kernel, reads, [y], slots * blocks, params | span, flops=flops, read_bytes=needed)
    if y is not out:
        yield cast(y, out, target)


@op(
    "ptegpu.linear_experts.default",
    splits=("weight",),
    indexes=_chosen,
    fits="x float[..., k], weight float[_, k], experts int32",
)
def linear_experts(x: Tensor, weight: Tensor, experts: Tensor, count: int, *, target: Target) -> Steps:
    """x (S, K) or (S, A, K), weight (count · N, K), experts int32 (S, A): (S, A, N), each by its expert's rows."""
    yield from _products("float", x, weight, None, experts, count, 0, target)


@op(
    "ptegpu.linear_experts_q8.default",
    splits=("weight",),
    indexes=_chosen,
    fits="x float, weight int8[r, k], scales float[r], experts int32",
)
def linear_experts_q8(
    x: Tensor, weight: Tensor, scales: Tensor, experts: Tensor, count: int, *, target: Target
) -> Steps:
    """The same with a weight in 8 bits and a scale for each of its rows; K is a multiple of 4."""
    if x.shape[-1] % 4:
        raise ShapeError(f"rows of {x.shape[-1]} are no multiple of 4")
    yield from _products("bytes", x, weight, scales, experts, count, 0, target)


@op(
    "ptegpu.linear_experts_q4.default",
    splits=("weight",),
    indexes=_chosen,
    fits="x float, weight int8|uint8[r, _], scales float[_, r], experts int32",
)
def linear_experts_q4(
    x: Tensor, weight: Tensor, scales: Tensor, group: int, experts: Tensor, count: int, *, target: Target
) -> Steps:
    """The same with a weight in 4 bits, (count · N, K / 2), even elements in the low half and offset by 8, and scales
    (K / group, count · N); K and group are multiples of 8."""
    if x.shape[-1] % 8 or group < 8 or group % 8 or scales.shape[0] * group != x.shape[-1]:
        raise ShapeError(f"scales of shape {list(scales.shape)} do not fit rows of {x.shape[-1]} in groups of {group}")
    yield from _products("halves", x, weight, scales, experts, count, group, target)
