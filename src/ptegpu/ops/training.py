"""Training on the device: gradients of linear layers, new codes for a 4-bit weight, cross entropy, AdamW. In f32."""

from __future__ import annotations

import math

from ..dtypes import FLOATS
from ..errors import ShapeError
from ..graph.graph import Tensor
from ..plan.target import Target
from .matmul import Product, multiply
from .pointwise import Strided, pointwise
from .registry import Out, Scratch, Steps, op


@op("et_vk.linear_dW.default", dtypes=FLOATS)
def linear_dw(d_out: Tensor, x: Tensor, *, target: Target) -> Steps:
    """The gradient of a weight (N, K): d_out (…, N) as a matrix, transposed, times x (…, K)."""
    if not d_out.rank or not x.rank:
        raise ShapeError("d_out and x must have at least one dimension")
    rows, n, k = math.prod(d_out.shape[:-1]), d_out.shape[-1], x.shape[-1]
    if math.prod(x.shape[:-1]) != rows:
        raise ShapeError(f"d_out {list(d_out.shape)} and x {list(x.shape)} must have as many rows")
    out = yield Out((n, k))
    turned = d_out
    if rows > 1 and n > 1:
        turned = yield Scratch((n, rows), d_out.dtype)
        yield pointwise("transpose", "a", [Strided(d_out, (1, n))], turned, target)
    yield from multiply(Product(turned, x, False, 1, n, k, rows, out, (n * k, k, 1)), target)
