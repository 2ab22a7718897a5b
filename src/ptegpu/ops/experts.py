"""Linear layers that choose a weight per row: the experts of a mixture.

These operators are ptegpu's own; `ptegpu.export` writes them. A weight concatenates the weights of all experts, and may
come in parts: each dispatch serves the rows of one part.
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
    """Return the k largest elements of each row, in order, and their indices in int32."""
    yield from topk(x, k, target=target)


def _expert_bounds(a: Mapping[str, Any]) -> Iterable[Bounded]:
    yield Bounded(a["experts"], 0, a["count"])


EXPERTS: dict[str, Any] = {"splits": ("weight",), "indexes": _expert_bounds}


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
        raise ShapeError(f"a weight of shape {list(weight.shape)} does not fit {count} experts and x {list(x.shape)}")
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


@op("ptegpu.linear_experts.default", fits="x float[..., k], weight float[_, k], experts int32", **EXPERTS)
def linear_experts(x: Tensor, weight: Tensor, experts: Tensor, count: int, *, target: Target) -> Steps:
    """Multiply x (S, K) or (S, A, K) by the rows of experts int32 (S, A) in a weight (count · N, K), to (S, A, N)."""
    yield from _products("float", x, weight, None, experts, count, 0, target)


@op("ptegpu.linear_experts_q8.default", fits="x float, weight int8[r, k], scales float[r], experts int32", **EXPERTS)
def linear_experts_q8(
    x: Tensor, weight: Tensor, scales: Tensor, experts: Tensor, count: int, *, target: Target
) -> Steps:
    """Multiply as in `linear_experts`, by a weight of 8 bits with a scale per row; K is a multiple of 4."""
    if x.shape[-1] % 4:
        raise ShapeError(f"rows of {x.shape[-1]} are not a multiple of 4")
    yield from _products("bytes", x, weight, scales, experts, count, 0, target)


@op(
    "ptegpu.linear_experts_q4.default",
    fits="x float, weight int8|uint8[r, _], scales float[_, r], experts int32",
    **EXPERTS,
)
def linear_experts_q4(
    x: Tensor, weight: Tensor, scales: Tensor, group: int, experts: Tensor, count: int, *, target: Target
) -> Steps:
    """Multiply as in `linear_experts`, by a weight of 4 bits (count · N, K / 2) with scales (K / group, count · N).

    Elements are offset by 8, even ones in the low half of a byte. K and group are multiples of 8.
    """
    if x.shape[-1] % 8 or group < 8 or group % 8 or scales.shape[0] * group != x.shape[-1]:
        raise ShapeError(f"scales of shape {list(scales.shape)} do not fit rows of {x.shape[-1]} in groups of {group}")
    yield from _products("halves", x, weight, scales, experts, count, group, target)
