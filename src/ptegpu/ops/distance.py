"""Distances between the rows of two tensors."""

from __future__ import annotations

import math

from ..graph.graph import Sym, Tensor
from ..kernels.distance import Norm, distance
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .pointwise import broadcast_strides, collapse
from .registry import Dispatch, Out, Steps, broadcast, op

NORMS: dict[float, Norm] = {0.0: "0", 1.0: "1", 2.0: "2", math.inf: "inf"}


@op("aten._cdist_forward.default", fits="x1 float[..., _, m], x2 [..., _, m]")
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None, *, target: Target) -> Steps:
    """x1 (…, P, M) and x2 (…, R, M) to distances (…, P, R), each from differences.

    Unlike PyTorch on a CPU, whose maximum may drop it, a NaN makes the distance NaN for p = inf, too.
    """
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    rows, others, width = x1.shape[-2], x2.shape[-2], x1.shape[-1]
    out = yield Out((*batch, rows, others), x1.dtype)
    lanes = 4 if width % 4 == 0 else 1
    a = broadcast_strides(x1.shape, (*batch, rows, width))
    b = broadcast_strides(x2.shape, (*batch, others, width))
    walks = [(*a[:-1], 0), (*b[:-2], 0, b[-2])]
    sizes, strides = collapse(out.shape, [tuple(s // lanes for s in walk) for walk in walks])
    norm = NORMS.get(p, "p")
    kernel = distance(norm, x1.dtype, x2.dtype, store_type(out.dtype, target), len(sizes), lanes, target)
    params: dict[str, int | float | Sym] = {"n": out.numel, "width": width // lanes}
    params |= {f"d{k}": n for k, n in enumerate(sizes)}
    params |= {f"{name}_s{k}": s for name, walk in zip("ab", strides) for k, s in enumerate(walk)}
    params |= {"p": p} if norm == "p" else {}
    yield Dispatch(
        kernel, [x1, x2], [out], -(-out.numel // kernel.kernel.workgroup), params, flops=3 * out.numel * width
    )
