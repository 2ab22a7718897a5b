"""Distances between the rows of two tensors."""

from __future__ import annotations

import math

from ..graph.graph import Tensor
from ..kernels.distance import Norm, distance
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .pointwise import broadcast_strides, collapse, walk_params
from .registry import Dispatch, Out, Steps, broadcast, op

NORMS: dict[float, Norm] = {0.0: "0", 1.0: "1", 2.0: "2", math.inf: "inf"}


@op("aten._cdist_forward.default", fits="x1 float[..., _, m], x2 [..., _, m]")
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None, *, target: Target) -> Steps:
    """Return the distances (…, P, R) of the rows of x1 (…, P, M) and x2 (…, R, M).

    Unlike PyTorch on a CPU, whose maximum may drop NaN, it makes the distance NaN also for p = inf.
    """
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    rows, others, width = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    out = yield Out((*batch, rows, others), x1.dtype)
    lanes = 4 if width % 4 == 0 else 1
    a = broadcast_strides(x1.shape, (*batch, rows, width))
    b = broadcast_strides(x2.shape, (*batch, others, width))
    row_strides = [(*a[:-1], 0), (*b[:-2], 0, b[-2])]
    sizes, strides = collapse(out.shape, [tuple(s // lanes for s in row) for row in row_strides])
    norm = NORMS.get(p, "p")
    kernel = distance(norm, x1.dtype, x2.dtype, store_type(out.dtype, target), len(sizes), lanes, target)
    params = {"n": out.numel, "width": width // lanes, **walk_params(sizes, dict(zip("ab", strides)))}
    params |= {"p": p} if norm == "p" else {}
    groups = -(-out.numel // kernel.kernel.workgroup)
    yield Dispatch(kernel, [x1, x2], [out], groups, params, flops=3 * out.numel * width)
