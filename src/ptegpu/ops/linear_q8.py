"""Linear layers of int8 rows, with 4-bit weights and parameters per row, or 8-bit weights and constant parameters."""

from __future__ import annotations

import math
from dataclasses import replace

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Tensor
from ..kernels.packing import WHOLE
from ..plan.target import Target
from ..sizes import ceil
from . import linear_q4
from .pointwise import Source, Strided, broadcast_strides, pointwise
from .product import Int8, Packed
from .registry import Out, Scratch, Steps, op

ACTIVATIONS = ("none", "relu")


def is_relu(activation: str) -> bool:
    if activation not in ACTIVATIONS:
        raise InvalidProgram(f"the activation '{activation}' is not one of {', '.join(ACTIVATIONS)}")
    return activation == "relu"


def check_sums(sums: Tensor, n: int, groups: int) -> None:
    if sums.shape[-1] < n or math.prod(sums.shape[:-1]) < groups:
        raise ShapeError(f"weight sums {sums.dtype.value}{list(sums.shape)} do not fit {n} rows of {groups} groups")


@op(
    "et_vk.linear_dq8ca_q4gsw.default",
    splits=("weights",),
    by_row="product",
    fits="x float, input_zero_points number, weights int8|uint8, weight_sums int32",
)
def linear_dq8ca_q4gsw(
    x: Tensor,
    input_scales: Tensor,
    input_zero_points: Tensor,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    target: Target,
) -> Steps:
    """Quantise x (…, K) to int8 with a scale and a zero point per row; multiply by weights as in `linear_q4gsw`.

    Unlike ExecuTorch's reference, which does not, it quantises x, as the pattern that the operator replaces does.
    """
    packed = Packed(weight_scales, 4, group_size)
    linear_q4.check(x, weights, packed, bias)
    k, m, n = x.shape[-1], math.prod(x.shape[:-1]), weights.shape[0]
    if input_scales.numel != m or input_zero_points.numel != m:
        shapes = f"{list(input_scales.shape)} and {list(input_zero_points.shape)}"
        raise ShapeError(f"scales and zero points of shapes {shapes} do not fit {m} rows")
    check_sums(weight_sums, n, ceil(k, group_size))
    out = yield Out((*x.shape[:-1], n))
    if m * n == 0:
        return
    product = linear_q4.product(x, weights, packed, bias, out)
    packing = product.packing
    if k > 0 and packing.aligned and (packing.run == WHOLE or packing.run >= 8):
        yield replace(product, int8=Int8(input_scales, input_zero_points, weight_sums))
        return
    rounded = yield Scratch(x.shape, DType.F32)
    strides = broadcast_strides((*x.shape[:-1], 1), x.shape)
    sources: list[Source] = [x, Strided(input_scales, strides), Strided(input_zero_points, strides)]
    body = "(clamp(round(a * (1.0 / b)) + c, -128.0, 127.0) - c) * b"
    yield pointwise("linear_dq8ca_round", body, sources, rounded, target, compute=DType.F32)
    yield replace(product, a=rounded)


def linear_q8(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, int8: Int8) -> Steps:
    """Multiply by an 8-bit weight. All rows of x share their parameters; float rows are quantised first."""
    packed = Packed(scales, 8, max(1, weight.shape[-1]))
    linear_q4.check(x, weight, packed, bias)
    check_sums(int8.sums, weight.shape[0], 1)
    out = yield Out((*x.shape[:-1], weight.shape[0]))
    yield replace(linear_q4.product(x, weight, packed, bias, out), int8=int8)


@op(
    "et_vk.linear_q8ta_q8csw.default",
    splits=("weights",),
    by_row="product",
    fits="x int8|float, weights int8, weight_sums int32, weight_scales float, bias float -> float",
)
def linear_q8ta_q8csw(
    x: Tensor,
    input_scale: float,
    input_zero_point: int,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None = None,
) -> Steps:
    """Multiply by int8 weights (N, K), with scales, sums and bias (N), perhaps padded. The result is float.

    Unlike ExecuTorch's reference, which does not, it quantises x, as the pattern that the operator replaces does.
    """
    int8 = Int8(input_scale, input_zero_point, weight_sums)
    yield from linear_q8(x, weights, weight_scales, bias, int8)


@op(
    "et_vk.q8ta_linear.default",
    "et_vk.q8ta_linear_gemv.default",
    splits=("weights",),
    by_row="product",
    fits="x int8, weights int8, weight_sums int32, weight_scales float, bias float",
)
def q8ta_linear(
    x: Tensor,
    input_scale: float,
    input_zero_point: int,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    output_scale: float,
    output_zero_point: int,
    bias: Tensor | None = None,
    activation: str = "none",
) -> Steps:
    """Multiply as in `linear_q8ta_q8csw`, and quantise the result to int8."""
    relu = is_relu(activation)
    int8 = Int8(input_scale, input_zero_point, weight_sums, output_scale, output_zero_point, relu)
    yield from linear_q8(x, weights, weight_scales, bias, int8)
