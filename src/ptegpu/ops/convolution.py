"""Convolutions over one to three spatial axes, also transposed, grouped and dilated, as products of windows."""

from __future__ import annotations

import math

from ..dtypes import FLOATS
from ..errors import ShapeError
from ..graph.graph import Tensor
from .product import convolved
from .registry import Out, Steps, op
from .windows import per_axis, window_of


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    clamp: tuple[float, float] | None,
) -> Steps:
    if not 3 <= weight.rank <= 5 or x.rank != weight.rank:
        raise ShapeError(f"a weight of {list(weight.shape)} cannot be applied to {list(x.shape)}")
    first, second = weight.shape[:2]
    given, made = (first, second * groups) if transposed else (second * groups, first)
    if groups < 1 or not given or not made or x.shape[1] != given or first % groups:
        text = f"a weight of {list(weight.shape)} in {groups} groups cannot be applied to {list(x.shape)}"
        raise ShapeError(f"{text}, transposed" if transposed else text)
    if bias is not None and bias.shape != (made,):
        raise ShapeError(f"a bias of {list(bias.shape)} does not fit {made} output channels")
    per_axis("output_padding", output_padding, weight.rank - 2, 0)
    more = output_padding if transposed else None
    window = window_of(x.shape[2:], weight.shape[2:], stride, padding, dilation, more)
    out = yield Out((x.shape[0], made, *window.out), x.dtype)
    yield convolved(x, weight, window, groups, out, bias=bias, clamp=clamp)


@op("aten.convolution.default", dtypes=FLOATS)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Steps:
    """x (batch, channels, …) by weight (out channels, channels / groups, …).

    Unlike PyTorch, which returns a tensor without channels, it refuses an input or a weight without channels: no known
    exporter writes one.
    """
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    yield from _convolve(x, weight, bias, *geometry, None)


@op("et_vk.conv_with_clamp.default", dtypes=FLOATS)
def conv_with_clamp(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_min: float | None = None,
    output_max: float | None = None,
) -> Steps:
    """A convolution whose result is kept within bounds; relu has no upper one.

    Unlike PyTorch, which returns a tensor without channels, it refuses an input or a weight without channels: no known
    exporter writes one.
    """
    low = -math.inf if output_min is None else output_min
    high = math.inf if output_max is None else output_max
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    yield from _convolve(x, weight, bias, *geometry, (low, high))
