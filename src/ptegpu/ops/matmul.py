"""Matrix products of floats and ints: what each operator multiplies, and the shapes of the results."""

from __future__ import annotations

import math

from ..dtypes import NUMBERS
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..plan.target import Target
from .pointwise import broadcast_strides, pointwise
from .product import Product, Strides
from .registry import Number, Out, Scratch, Steps, broadcast, op


def _inner(a: Shape, b: Shape, a_dim: int, b_dim: int) -> int:
    if a[a_dim] != b[b_dim]:
        raise ShapeError(f"{list(a)} and {list(b)} cannot be multiplied")
    return a[a_dim]


def _check_rank(name: str, t: Tensor, rank: int) -> None:
    if t.rank != rank:
        raise ShapeError(f"{name} must have {rank} dimensions, not the shape {list(t.shape)}")


def _added(bias: Tensor | None, beta: float, shape: Shape) -> tuple[Tensor | None, Strides]:
    """A bias and its strides over (batch, row, column); None where it counts for nothing."""
    if bias is None or beta == 0.0:
        return None, (0, 0, 0)
    if broadcast(bias.shape, shape) != shape:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not broadcast to {list(shape)}")
    strides = (0, 0, 0, *broadcast_strides(bias.shape, shape))[-3:]
    return bias, (strides[0], strides[1], strides[2])


def _batched(x: Tensor, y: Tensor, rank: int, bias: Tensor | None = None, beta: Number = 1, alpha: Number = 1) -> Steps:
    """x (…, m, k) · y (…, k, n) of two or three dimensions, the leading one equal."""
    for name, t in (("x", x), ("y", y)):
        _check_rank(name, t, rank)
    *lead, m, k = x.shape
    n = y.shape[-1]
    if rank == 3:
        _inner(x.shape, y.shape, 0, 0)
    _inner(x.shape, y.shape, -1, -2)
    shape = (*lead, m, n)
    bias, bias_strides = _added(bias, beta, shape)
    out = yield Out(shape)
    batch, strides = math.prod(lead), (m * n, n, 1)
    yield Product(x, y, False, batch, m, n, k, out, strides, 0, bias, bias_strides, alpha=alpha, beta=beta)


@op("aten.mm.default", dtypes=NUMBERS, role="product")
def mm(x: Tensor, y: Tensor) -> Steps:
    yield from _batched(x, y, 2)


@op("aten.addmm.default", dtypes=NUMBERS, role="product")
def addmm(bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1) -> Steps:
    yield from _batched(x, y, 2, bias, beta, alpha)


@op("aten.bmm.default", dtypes=NUMBERS, role="product")
def bmm(x: Tensor, y: Tensor) -> Steps:
    yield from _batched(x, y, 3)


@op("aten.baddbmm.default", dtypes=NUMBERS, role="product")
def baddbmm(bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1) -> Steps:
    yield from _batched(x, y, 3, bias, beta, alpha)


@op("aten.linear.default", splits=("weight",), dtypes=NUMBERS, role="product")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, target: Target) -> Steps:
    """x (…, K) · weight (N, K)ᵀ, or (K). A weight in parts is one dispatch per part, each for its own columns."""
    if not x.rank:
        raise ShapeError("x must have at least one dimension")
    if weight.rank != 2 and (weight.rank != 1 or weight.parts):
        raise ShapeError(f"weight must have 2 dimensions, not the shape {list(weight.shape)}")
    k = _inner(x.shape, weight.shape, -1, -1)
    m, n = math.prod(x.shape[:-1]), weight.shape[0] if weight.rank == 2 else 1
    shape = (*x.shape[:-1], *weight.shape[:-1])
    _added(bias, 1.0, shape)
    out = yield Out(shape)
    if bias is not None and bias.rank > 1 and out.rank != 2:  # not the same for all rows, nor in a matrix' strides
        spread = yield Scratch(shape, bias.dtype)
        yield pointwise("expand", "a", [bias], spread, target)
        bias, bias_strides = spread, (0, n, 1)
    else:
        bias, bias_strides = _added(bias, 1.0, (m, n))
    yield Product(x, weight, True, 1, m, n, k, out, (m * n, n, 1), 0, bias, bias_strides)


@op("aten.mv.default", splits=("x",), dtypes=NUMBERS)
def mv(x: Tensor, vector: Tensor, *, target: Target) -> Steps:
    """x (N, K) · vector (K)."""
    _check_rank("x", x, 2)
    _check_rank("vector", vector, 1)
    yield from linear(vector, x, target=target)


@op("aten.dot.default", dtypes=NUMBERS)
def dot(x: Tensor, y: Tensor) -> Steps:
    _check_rank("x", x, 1)
    _check_rank("y", y, 1)
    k = _inner(x.shape, y.shape, 0, 0)
    out = yield Out(())
    yield Product(x, y, True, 1, 1, 1, k, out, (1, 1, 1))
