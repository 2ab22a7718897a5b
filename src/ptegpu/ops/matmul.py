"""The operators that multiply matrices of floats or ints."""

from __future__ import annotations

import math

from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..plan.target import Target
from .linear_q4 import LINEAR
from .pointwise import broadcast_strides, pointwise
from .product import Product, Strides
from .registry import Number, Out, Scratch, Steps, broadcast, op


def _added(bias: Tensor | None, beta: float, shape: Shape) -> tuple[Tensor | None, Strides]:
    """Return a bias and its strides over (batch, row, column); None for the bias if it has no effect."""
    if bias is None or beta == 0.0:
        return None, (0, 0, 0)
    if broadcast(bias.shape, shape) != shape:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not broadcast to {list(shape)}")
    strides = (0, 0, 0, *broadcast_strides(bias.shape, shape))[-3:]
    return bias, (strides[0], strides[1], strides[2])


def _batched(x: Tensor, y: Tensor, bias: Tensor | None = None, beta: Number = 1, alpha: Number = 1) -> Steps:
    """Multiply x (…, m, k) by y (…, k, n), which have two or three dimensions, with equal leading ones."""
    *lead, m, k = x.shape
    n = y.shape[-1]
    shape = (*lead, m, n)
    bias, bias_strides = _added(bias, beta, shape)
    out = yield Out(shape)
    batch, strides = math.prod(lead), (m * n, n, 1)
    yield Product(x, y, False, batch, m, n, k, out, strides, 0, bias, bias_strides, alpha=alpha, beta=beta)


@op("aten.mm.default", fits="x number[m, k], y x[k, n] -> x", **LINEAR)
def mm(x: Tensor, y: Tensor) -> Steps:
    yield from _batched(x, y)


@op("aten.addmm.default", fits="bias number, x bias[m, k], y bias[k, n] -> bias", role="product")
def addmm(bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1) -> Steps:
    yield from _batched(x, y, bias, beta, alpha)


@op("aten.bmm.default", fits="x number[b, m, k], y x[b, k, n] -> x", role="product")
def bmm(x: Tensor, y: Tensor) -> Steps:
    yield from _batched(x, y)


@op("aten.baddbmm.default", fits="bias number, x bias[b, m, k], y bias[b, k, n] -> bias", role="product")
def baddbmm(bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1) -> Steps:
    yield from _batched(x, y, bias, beta, alpha)


@op("aten.linear.default", splits=("weight",), fits="x number[..., k], weight x[..., k], bias x -> x", **LINEAR)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, target: Target) -> Steps:
    """Multiply x (…, K) by weight (N, K)ᵀ, or by weight (K)."""
    if weight.rank != 2 and (weight.rank != 1 or weight.parts):
        raise ShapeError(f"weight must have 2 dimensions, not the shape {list(weight.shape)}")
    k = x.shape[-1]
    m, n = math.prod(x.shape[:-1]), weight.shape[0] if weight.rank == 2 else 1
    shape = (*x.shape[:-1], *weight.shape[:-1])
    _added(bias, 1.0, shape)
    out = yield Out(shape)
    if bias is not None and bias.rank > 1 and out.rank != 2:  # rows may differ, and strides over (m, n) do not suffice
        spread = yield Scratch(shape, bias.dtype)
        yield pointwise("expand", "a", [bias], spread, target)
        bias, bias_strides = spread, (0, n, 1)
    else:
        bias, bias_strides = _added(bias, 1.0, (m, n))
    yield Product(x, weight, True, 1, m, n, k, out, (m * n, n, 1), 0, bias, bias_strides)


@op("aten.mv.default", splits=("x",), fits="x number[n, k], vector x[k] -> x")
def mv(x: Tensor, vector: Tensor, *, target: Target) -> Steps:
    """Multiply x (N, K) by a vector (K)."""
    yield from linear(vector, x, target=target)


@op("aten.dot.default", fits="x number[k], y x[k] -> x")
def dot(x: Tensor, y: Tensor) -> Steps:
    out = yield Out(())
    yield Product(x, y, True, 1, 1, 1, x.shape[0], out, (1, 1, 1))
