"""Convolutions over one to three spatial axes, also transposed, grouped and dilated, as products of windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Arg, Tensor
from .conv_products import per_axis, window_of
from .product import convolved
from .registry import Out, Steps, op


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
    in_channels, out_channels = (first, second * groups) if transposed else (second * groups, first)
    if groups < 1 or not in_channels or not out_channels or x.shape[1] != in_channels or first % groups:
        text = f"a weight of {list(weight.shape)} in {groups} groups cannot be applied to {list(x.shape)}"
        raise ShapeError(f"{text}, transposed" if transposed else text)
    if bias is not None and bias.shape != (out_channels,):
        raise ShapeError(f"a bias of {list(bias.shape)} does not fit {out_channels} output channels")
    per_axis("output_padding", output_padding, weight.rank - 2, 0)
    extra = output_padding if transposed else None
    window = window_of(x.shape[2:], weight.shape[2:], stride, padding, dilation, extra)
    out = yield Out((x.shape[0], out_channels, *window.out), x.dtype)
    yield convolved(x, weight, window, groups, out_channels, out, bias=bias, clamp=clamp)


def _rescaled(a: Mapping[str, Any], factor: np.ndarray, added: np.ndarray) -> tuple[Arg, ...] | None:
    """Return the arguments of a convolution that multiplies its output channels by factors and adds to them."""
    weight, bias, groups = a["weight"], a["bias"], a["groups"]
    channels = weight.shape[1] * groups if a["transposed"] else weight.shape[0]
    if factor.shape != (channels,) or (bias and bias.shape != (channels,)):
        return None
    if any(t.kind != "constant" or t.dtype is not DType.F32 for t in (weight, bias) if t):
        return None
    first, second, *taps = weight.shape
    if a["transposed"]:  # (channels, out channels of a group, …)
        shaped = weight.data.reshape(groups, first // groups, second, *taps)
        by = factor.reshape(groups, 1, second, *(1 for _ in taps))
    else:
        shaped, by = weight.data, factor.reshape(first, 1, *(1 for _ in taps))
    with np.errstate(all="ignore"):
        scaled = (shaped * by).astype(np.float32).reshape(weight.shape)
        shifted = (added if bias is None else added + bias.data * factor).astype(np.float32)
    changed = {
        "weight": replace(weight, name=f"{weight.name} scaled", data=scaled),
        "bias": Tensor(f"{weight.name} shift", DType.F32, shifted.shape, "constant", shifted),
    }
    return tuple(tuple(value) if isinstance(value, list) else value for value in {**a, **changed}.values())


@op("aten.convolution.default", fits="x float", role="product", rescaled=_rescaled)
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
    """Convolve x (batch, channels, …) with a weight (out channels, channels / groups, …).

    Unlike PyTorch, which returns a tensor without channels, it refuses an input or a weight without channels: no known
    exporter writes one.
    """
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    yield from _convolve(x, weight, bias, *geometry, None)


@op("et_vk.conv_with_clamp.default", fits="x float", role="product")
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
    """Convolve and clamp the result; relu has no upper bound.

    Unlike PyTorch, which returns a tensor without channels, it refuses an input or a weight without channels: no known
    exporter writes one.
    """
    low = -math.inf if output_min is None else output_min
    high = math.inf if output_max is None else output_max
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    yield from _convolve(x, weight, bias, *geometry, (low, high))
