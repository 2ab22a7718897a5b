"""Convolutions of int8 images with int8 weights: products of `linear_q8`, or, channel by channel, a kernel of its own.

Weights are (out channels, kernel H · kernel W · channels of a group), rows maybe padded; depthwise ones (kernel H,
kernel W, channels). Scales, sums and bias have one number per output channel, maybe padded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels.linear_q4 import WHOLE
from ..kernels.linear_q8 import Form, gemm
from ..kernels.matmul import MEDIUM, SMALL
from ..kernels.q8ta_conv import depthwise, window
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .linear_q8 import check_sums, is_relu
from .registry import Dispatch, Out, Steps, op


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes along both axes."""

    size: Shape
    out: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    def params(self) -> dict[str, int]:
        values = zip("iokspd", (self.size, self.out, self.kernel, self.stride, self.padding, self.dilation))
        return {f"{n}{k}": sizes[k] for n, sizes in values for k in (0, 1)}


def _geometry(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int] | None = None,
) -> Geometry:
    """With an output padding the convolution is a transposed one."""
    if x.rank != 4:
        raise ShapeError(f"the input must have 4 dimensions, not the shape {list(x.shape)}")
    k, s, p, d = (tuple(v * 2 if len(v) == 1 else v) for v in (kernel, stride, padding, dilation))
    size = x.shape[2:]
    if output_padding is None:
        out = tuple((size[a] + 2 * p[a] - d[a] * (k[a] - 1) - 1) // s[a] + 1 for a in (0, 1))
    else:
        more = output_padding * 2 if len(output_padding) == 1 else output_padding
        out = tuple((size[a] - 1) * s[a] - 2 * p[a] + d[a] * (k[a] - 1) + more[a] + 1 for a in (0, 1))
    if min(out) < 1:
        raise ShapeError(f"a kernel of {list(k)} is larger than the input of {list(size)} with its padding")
    return Geometry(size, out, k, s, p, d)


def _check(x: Tensor, geometry: Geometry, weights: Tensor, sums: Tensor, bias: Tensor | None, groups: int) -> None:
    """ShapeError unless everything belongs together."""
    if groups < 1 or x.shape[1] % groups or weights.rank != 2 or weights.shape[0] % groups:
        raise ShapeError(f"weights {list(weights.shape)} in {groups} groups do not fit the input {list(x.shape)}")
    depth = x.shape[1] // groups
    if weights.shape[1] < depth * math.prod(geometry.kernel):
        raise ShapeError(f"rows of {weights.shape[1]} do not hold {depth} channels of {list(geometry.kernel)}")
    check_sums(sums, weights.shape[0], 1)
    if bias is not None and bias.numel < weights.shape[0]:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not fit {weights.shape[0]} channels")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The parameters of quantisation of input and output."""

    x_scale: float
    x_zero: int
    y_scale: float
    y_zero: int
    relu: bool

    def params(self) -> dict[str, int | float]:
        inverse = {"y_inverse": 1.0 / self.y_scale, "y_zero": float(self.y_zero)}
        return {"x_scale": self.x_scale, "x_zero": self.x_zero, **inverse}


def _products(
    x: Tensor,
    weights: Tensor,
    sums: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    groups: int,
    numbers: Numbers,
    transposed: bool,
    y: Tensor,
    target: Target,
) -> Steps:
    """A product per image and group: positions of the output by its channels."""
    depth, per_group = x.shape[1] // groups, weights.shape[0] // groups
    positions, k = math.prod(geometry.out), depth * math.prod(geometry.kernel)
    quads = positions % 4 == 0
    # A transposed convolution has its scales along the channels of one group.
    gather = window(transposed, depth % 4 == 0, transposed and groups > 1)
    form = Form(
        8,
        WHOLE,
        weights.dtype,
        scales.dtype,
        bias.dtype if bias else None,
        y.dtype if quads else store_type(y.dtype, target),
        numbers.relu,
        None,
        None,
        quads,
        weights.shape[1] % 4 == 0,
        gather,
    )
    products = x.shape[0] * groups
    tiles = products * -(-positions // MEDIUM.size) * -(-per_group // MEDIUM.size)
    tile = MEDIUM if tiles >= target.device_class.busy and per_group > SMALL.size else SMALL
    rows, columns = -(-positions // tile.size), -(-per_group // tile.size)
    words = -(-k // 4)
    params: dict[str, int | float] = {"m": positions, "n": per_group, "x_words": words, "row_bytes": weights.shape[1]}
    params |= {"group": max(k, 1), "scale_stride": 0, "scale_groups": 1, "first": 0, "y_row": 0, "y_first": 0}
    params |= {"row_tiles": rows, "column_tiles": columns, "group_words": words, "sums_stride": 0}
    params |= {"sets": groups, "depth": depth, **geometry.params(), **numbers.params()}
    reads = [x, weights, scales, sums, *([bias] if bias else [])]
    flops = 2 * math.prod(geometry.kernel) * (x.numel * per_group if transposed else y.numel * depth)
    yield Dispatch(gemm(form, tile, target), reads, [y], products * rows * columns, params, flops=flops)


@op("et_vk.q8ta_conv2d.default", "et_vk.q8ta_conv2d_pw.default", dtypes=(DType.I8,))
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
    *,
    target: Target,
) -> Steps:
    """Unlike in ExecuTorch's reference, rows of the weight are (kernel H, kernel W, channels), as they are exported."""
    geometry = _geometry(x, kernel_size, stride, padding, dilation)
    _check(x, geometry, weights, weight_sums, bias, groups)
    numbers = Numbers(input_scale, input_zero_point, output_scale, output_zero_point, is_relu(activation))
    out = yield Out((x.shape[0], weights.shape[0], *geometry.out), DType.I8)
    if out.numel:
        constants = weights, weight_sums, weight_scales, bias
        yield from _products(x, *constants, geometry, groups, numbers, False, out, target)


@op("et_vk.q8ta_conv2d_transposed.default", dtypes=(DType.I8,))
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
    *,
    target: Target,
) -> Steps:
    geometry = _geometry(x, kernel_size, stride, padding, dilation, output_padding)
    _check(x, geometry, weights, weight_sums, bias, groups)
    numbers = Numbers(input_scale, input_zero_point, output_scale, output_zero_point, is_relu(activation))
    out = yield Out((x.shape[0], weights.shape[0], *geometry.out), DType.I8)
    if out.numel:
        constants = weights, weight_sums, weight_scales, bias
        yield from _products(x, *constants, geometry, groups, numbers, True, out, target)


@op("et_vk.q8ta_conv2d_dw.default", dtypes=(DType.I8,))
def q8ta_conv2d_dw(
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
    *,
    target: Target,
) -> Steps:
    """Channel by channel; the sums of the weights are not needed."""
    geometry = _geometry(x, kernel_size, stride, padding, dilation)
    channels = x.shape[1]
    if weights.shape != (*geometry.kernel, channels) or groups != channels:
        raise ShapeError(f"weights {list(weights.shape)} in {groups} groups do not fit the input {list(x.shape)}")
    numbers = Numbers(input_scale, input_zero_point, output_scale, output_zero_point, is_relu(activation))
    out = yield Out((x.shape[0], channels, *geometry.out), DType.I8)
    if not out.numel:
        return
    kernel = depthwise(weights.dtype, weight_scales.dtype, bias.dtype if bias else None, numbers.relu, target)
    params = {"count": out.numel, "channels": channels, **geometry.params(), **numbers.params()}
    reads = [x, weights, weight_scales, *([bias] if bias else [])]
    flops = 2 * math.prod(geometry.kernel) * out.numel
    yield Dispatch(kernel, reads, [out], -(-out.numel // (4 * kernel.kernel.workgroup)), params, flops=flops)
