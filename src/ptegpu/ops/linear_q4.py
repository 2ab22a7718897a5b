"""Linear layers of float rows with packed 4-bit or 8-bit weights, which kernels dequantise as they load them."""

from __future__ import annotations

import math

from ..errors import ShapeError
from ..graph.graph import Tensor
from .product import Packed, Product
from .registry import Out, Steps, op

LINEAR = {"role": "product", "by_row": "product"}


def check(x: Tensor, weight: Tensor, packed: Packed, bias: Tensor | None) -> None:
    """Raise ShapeError unless the shapes of x (…, K), the weight with N rows, its scales and the bias match."""
    scales, group = packed.scales, packed.group
    if not x.rank:
        raise ShapeError("x must have at least one dimension")
    if weight.rank != 2:
        raise ShapeError(f"the weight must have 2 dimensions, not the shape {list(weight.shape)}")
    k, n = x.shape[-1], weight.shape[0]
    if weight.shape[1] * 8 < k * packed.bits:
        raise ShapeError(f"rows of {weight.shape[1]} bytes do not hold {k} elements of {packed.bits} bits")
    if group < 1 or scales.shape[-1] < n or math.prod(scales.shape[:-1]) * group < k:
        raise ShapeError(f"scales of shape {list(scales.shape)} do not fit {n} rows of {k} in groups of {group}")
    if bias is not None and bias.numel < n:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not fit {n} columns")


def product(x: Tensor, weight: Tensor, packed: Packed, bias: Tensor | None, out: Tensor) -> Product:
    """Return the product x (…, K) · weightᵀ + bias."""
    m, n = math.prod(x.shape[:-1]), weight.shape[0]
    return Product(x, weight, True, 1, m, n, x.shape[-1], out, (m * n, n, 1), 0, bias, (0, 0, 1), packed=packed)


def linear(x: Tensor, weight: Tensor, packed: Packed, bias: Tensor | None = None) -> Steps:
    check(x, weight, packed, bias)
    out = yield Out((*x.shape[:-1], weight.shape[0]))
    yield product(x, weight, packed, bias, out)


@op("et_vk.linear_q4gsw.default", splits=("weights",), fits="x float, weights int8|uint8", **LINEAR)
def linear_q4gsw(
    x: Tensor, weights: Tensor, weight_scales: Tensor, group_size: int, bias: Tensor | None = None
) -> Steps:
    """Multiply by weights (N, K / 2) with scales (K / group, N), all perhaps padded.

    Elements are offset by 8, even ones in the low half of a byte.
    """
    yield from linear(x, weights, Packed(weight_scales, 4, group_size), bias)


@op("et_vk.linear_qcs4w.default", splits=("weight",), fits="x float, weight int8|uint8", **LINEAR)
def linear_qcs4w(x: Tensor, weight: Tensor, scales: Tensor) -> Steps:
    """Multiply by a weight (N, K / 2) with scales (N). Elements are offset by 8, even ones in the high half of a byte.

    Unlike ExecuTorch's reference, which forgets to, it subtracts the offset that the packing adds.
    """
    yield from linear(x, weight, Packed(scales, 4, max(1, 2 * weight.shape[-1]), high_first=True))


@op("aten._weight_int8pack_mm.default", splits=("weight",), fits="x float, weight int8", **LINEAR)
def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Steps:
    """Multiply by an int8 weight (N, K) with scales (N)."""
    yield from linear(x, weight, Packed(scales, 8, max(1, weight.shape[-1])))
