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
    yield convolved(x, weight, window, groups, made, out, bias=bias, clamp=clamp)


def _rescaled(a: Mapping[str, Any], factor: np.ndarray, added: np.ndarray) -> tuple[Arg, ...] | None:
    """The arguments of a convolution whose output channels are multiplied with factors, and added to."""
    weight, bias, groups = a["weight"], a["bias"], a["groups"]
    made = weight.shape[1] * groups if a["transposed"] else weight.shape[0]
    if factor.shape != (made,) or (bias and bias.shape != (made,)):
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
    return tuple(
        replace(weight, name=f"{weight.name} scaled", data=scaled)
        if name == "weight"
        else Tensor(f"{weight.name} shift", DType.F32, shifted.shape, "constant", shifted)
        if name == "bias"
        else tuple(value)
        if isinstance(value, list)
        else value
        for name, value in a.items()
    )


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
    """x (batch, channels, …) by weight (out channels, channels / groups, …).

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
    """A convolution whose result is kept within bounds; relu has no upper one.

    Unlike PyTorch, which returns a tensor without channels, it refuses an input or a weight without channels: no known
    exporter writes one.
    """
    low = -math.inf if output_min is None else output_min
    high = math.inf if output_max is None else output_max
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    yield from _convolve(x, weight, bias, *geometry, (low, high))
