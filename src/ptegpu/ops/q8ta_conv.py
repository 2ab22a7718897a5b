"""Convolutions of int8 images with int8 weights, as products of windows.

Weights are (out channels, kernel H · kernel W · channels of a group), with rows perhaps padded, or (kernel H, kernel W,
channels) if depthwise. Scales, sums and bias have a number per output channel, perhaps padded; a transposed convolution
has scales per channel of a group.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Tensor
from .conv_products import ConvWindow, per_axis, window_of
from .linear_q8 import check_sums, is_relu
from .product import Int8, Packed, convolved
from .registry import Out, Steps, op

QUANTISED = "x int8[n, c, h, w], weights int8, weight_sums int32, weight_scales float, bias float"


def _window(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int] | None = None,
) -> ConvWindow:
    return window_of(x.shape[2:], per_axis("kernel", kernel, 2, 1), stride, padding, dilation, output_padding)


def _convolve(
    x: Tensor, window: ConvWindow, weights: Tensor, scales: Tensor, bias: Tensor | None, groups: int, int8: Int8
) -> Steps:
    """Convolve with weights that are depthwise if they have three dimensions; these need no sums."""
    depthwise = weights.rank == 3
    channels = weights.shape[-1 if depthwise else 0]
    fits = weights.shape == (*window.kernel, groups) if depthwise else weights.rank == 2
    if groups < 1 or x.shape[1] % groups or channels % groups or not fits or (depthwise and x.shape[1] != channels):
        raise ShapeError(f"weights {list(weights.shape)} in {groups} groups do not fit the input {list(x.shape)}")
    depth = x.shape[1] // groups
    k = depth * math.prod(window.kernel)
    if not depthwise:
        if weights.shape[1] < k:
            raise ShapeError(f"rows of {weights.shape[1]} do not hold {depth} channels of {list(window.kernel)}")
        check_sums(int8.sums, channels, 1)
    scaled = channels // groups if window.transposed else channels
    if scales.numel < scaled:
        raise ShapeError(f"scales of shape {list(scales.shape)} do not fit {scaled} channels")
    if bias is not None and bias.numel < channels:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not fit {channels} channels")
    out = yield Out((x.shape[0], channels, *window.out), DType.I8)
    packed = Packed(scales, 8, max(k, 1))
    product = convolved(x, weights, window, groups, channels, out, bias=bias, packed=packed, int8=int8)
    yield replace(product, transposed=not depthwise)


@op("et_vk.q8ta_conv2d.default", "et_vk.q8ta_conv2d_pw.default", "et_vk.q8ta_conv2d_dw.default", fits=QUANTISED)
def q8ta_conv2d(
    x: Tensor,
    input_scale: float,
    input_zero_point: int,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    output_scale: float,
    output_zero_point: int,
    bias: Tensor | None,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    activation: str = "none",
) -> Steps:
    """Unlike in ExecuTorch's reference, weights have (kernel H, kernel W, channels) in this order, as exported."""
    window = _window(x, kernel_size, stride, padding, dilation)
    quantised = (input_scale, input_zero_point, weight_sums, output_scale, output_zero_point, is_relu(activation))
    yield from _convolve(x, window, weights, weight_scales, bias, groups, Int8(*quantised))


@op("et_vk.q8ta_conv2d_transposed.default", fits=QUANTISED)
def q8ta_conv2d_transposed(
    x: Tensor,
    input_scale: float,
    input_zero_point: int,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    output_scale: float,
    output_zero_point: int,
    bias: Tensor | None,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    output_padding: list[int],
    dilation: list[int],
    groups: int,
    activation: str = "none",
) -> Steps:
    window = _window(x, kernel_size, stride, padding, dilation, output_padding)
    quantised = (input_scale, input_zero_point, weight_sums, output_scale, output_zero_point, is_relu(activation))
    yield from _convolve(x, window, weights, weight_scales, bias, groups, Int8(*quantised))
