"""Quantisation to integers, dequantisation, the choice of parameters, and three operators on quantised values.

All arithmetic is in f32, as in PyTorch: values are multiplied by the inverse of the scale, and ties round to even.
Zero points are int64 in programs, but within the range of the quantised dtype, so these operators are `wide`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..dtypes import DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels.lanes import ALONG_ROWS, choose
from ..kernels.quantize import RULES, choose_qparams, qparams_of_extremes
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .pointwise import Source, Strided, broadcast_strides, contiguous, pointwise
from .reduce import lanes_for, reduce, rows_of
from .registry import Dispatch, Number, Out, Scratch, Steps, broadcast, normalise_dim, op

EPSILON = 2.0**-23  # of f32
SMALLEST = {DType.F32: 2.0**-126, DType.F16: 2.0**-14}  # normal numbers
QUANTIZE = "return i32(clamp(round(a * (1.0 / b)) + c, low, high));"
DEQUANTIZE = "(a - c) * b"
REQUANTIZE = "return i32(clamp(round(({value}) * inverse) + zero, -128.0, 127.0));"


def _quantized(
    x: Source, scale: Source, zero: Source, low: Number, high: Number, out: Tensor, target: Target, **more: Any
) -> Dispatch:
    body = more.pop("body", QUANTIZE)
    limits = {"low": low, "high": high}
    return pointwise("quantize", body, [x, scale, zero], out, target, scalars=limits, compute=DType.F32, **more)


def _dequantized(x: Source, scale: Source, zero: Source, out: Tensor, target: Target, **more: Any) -> Dispatch:
    return pointwise("dequantize", DEQUANTIZE, [x, scale, zero], out, target, compute=DType.F32, **more)


@op("quantized_decomposed.quantize_per_tensor.default", fits="x float -> int")
def quantize_per_tensor(
    x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: Any, *, target: Target
) -> Steps:
    out = yield Out(x.shape)
    body = QUANTIZE.replace("(1.0 / b)", "b")
    yield _quantized(x, 1.0 / scale, zero_point, quant_min, quant_max, out, target, body=body)


@op("quantized_decomposed.quantize_per_tensor.tensor", fits="x float, zero_point number -> int", wide=True)
def quantize_per_tensor_tensor(
    x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, dtype: Any, *, target: Target
) -> Steps:
    out = yield Out(x.shape)
    yield _quantized(x, _one(scale, x.rank), _one(zero_point, x.rank), quant_min, quant_max, out, target)


@op("quantized_decomposed.dequantize_per_tensor.default", fits="x int -> float")
def dequantize_per_tensor(
    x: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
    *,
    target: Target,
) -> Steps:
    out = yield Out(x.shape)
    yield _dequantized(x, scale, zero_point, out, target)


@op(
    "quantized_decomposed.dequantize_per_tensor.tensor",
    fits="x int, scale float, zero_point number -> float",
    wide=True,
)
def dequantize_per_tensor_tensor(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
    *,
    target: Target,
) -> Steps:
    out = yield Out(x.shape)
    yield _dequantized(x, _one(scale, x.rank), _one(zero_point, x.rank), out, target)


def _one(t: Tensor, rank: int) -> Strided:
    """Return a tensor of one element, whatever its rank, broadcast to `rank` dimensions."""
    if t.numel != 1:
        raise ShapeError(f"a scale or zero point of shape {list(t.shape)} is not one number")
    return Strided(t, (0,) * rank)


def _along(t: Tensor, shape: Shape, axis: int) -> Strided:
    """Return a tensor with a number per index of dimension `axis`, broadcast to `shape`."""
    dim = normalise_dim(axis, len(shape))
    if t.numel != shape[dim]:
        raise ShapeError(f"{t.numel} scales or zero points do not fit {shape[dim]} channels")
    return Strided(t, tuple(int(k == dim) for k in range(len(shape))))


@op("quantized_decomposed.quantize_per_channel.default", fits="x float, zero_points number -> int", wide=True)
def quantize_per_channel(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    target: Target,
) -> Steps:
    scale, zero = _along(scales, x.shape, axis), _along(zero_points, x.shape, axis)
    out = yield Out(x.shape)
    yield _quantized(x, scale, zero, quant_min, quant_max, out, target)


@op(
    "quantized_decomposed.dequantize_per_channel.default",
    fits="x int, scales float, zero_points number -> float",
    wide=True,
)
def dequantize_per_channel(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
    *,
    target: Target,
) -> Steps:
    """Unlike PyTorch, where it wraps, the difference of a value and a zero point that are both int8 is exact."""
    scale = _along(scales, x.shape, axis)
    zero = 0 if zero_points is None else _along(zero_points, x.shape, axis)
    out = yield Out(x.shape)
    yield _dequantized(x, scale, zero, out, target)


def _per_row(t: Tensor, shape: Shape) -> Strided:
    """Return a tensor with a number per row of the last dimension, broadcast to `shape`."""
    rows = (*shape[:-1], 1)
    if t.numel * shape[-1] != math.prod(shape):
        raise ShapeError(f"scales or zero points of shape {list(t.shape)} do not fit rows of shape {list(shape)}")
    return Strided(t, broadcast_strides(rows, shape))


@op("quantized_decomposed.quantize_per_token.default", fits="x float, zero_points number -> int", wide=True)
def quantize_per_token(
    x: Tensor, scales: Tensor, zero_points: Tensor, quant_min: int, quant_max: int, dtype: Any, *, target: Target
) -> Steps:
    scale, zero = _per_row(scales, x.shape), _per_row(zero_points, x.shape)
    out = yield Out(x.shape)
    body = "return i32(clamp(round(a * (1.0 / b) + c), low, high));"
    yield _quantized(x, scale, zero, quant_min, quant_max, out, target, body=body)


@op(
    "quantized_decomposed.dequantize_per_token.default",
    fits="x int, scales float, zero_points number -> float",
    wide=True,
)
def dequantize_per_token(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    output_dtype: Any,
    *,
    target: Target,
) -> Steps:
    """Unlike PyTorch, where it wraps, the difference of a value and a zero point that are both int8 is exact."""
    scale, zero = _per_row(scales, x.shape), _per_row(zero_points, x.shape)
    out = yield Out(x.shape)
    yield _dequantized(x, scale, zero, out, target)


class Blocks:
    """A shape split into blocks that share their parameters, with dimensions over blocks and dimensions within them."""

    def __init__(self, shape: Shape, block: Sequence[int]) -> None:
        if len(block) != len(shape) or any(b < 1 or n % b for n, b in zip(shape, block)):
            raise ShapeError(f"blocks of {list(block)} do not fit the shape {list(shape)}")
        self.shape: list[int] = []  # over blocks and within blocks
        self.inside: list[int] = []  # the dimensions within blocks
        self.counts: list[int] = []
        for n, b in zip(shape, block, strict=True):
            self.counts.append(n // b)
            if b not in (1, n):
                self.shape.append(n // b)
            if b > 1:
                self.inside.append(len(self.shape))
            self.shape.append(n if b in (1, n) else b)

    @property
    def outer(self) -> Shape:
        """The shape of the parameters, without dimensions of one block."""
        return tuple(n for k, n in enumerate(self.shape) if k not in self.inside)

    def parameter(self, t: Tensor) -> Strided:
        """Return a scale or zero point per block, broadcast to `shape`."""
        strides = iter(contiguous(self.outer))
        if t.numel != math.prod(self.outer):
            raise ShapeError(f"scales or zero points of shape {list(t.shape)} do not fit {list(self.counts)} blocks")
        return Strided(t, tuple(0 if k in self.inside else next(strides) for k in range(len(self.shape))))

    def of(self, x: Tensor) -> Strided:
        return Strided(x, contiguous(tuple(self.shape)))


def _range(quant_min: Number | None, quant_max: Number | None, dtype: DType) -> tuple[Number, Number]:
    """Return the range of quantised values, by default that of the dtype."""
    low, high = (0, 255) if dtype is DType.U8 else (-128, 127)
    return low if quant_min is None else quant_min, high if quant_max is None else quant_max


@op("torchao.quantize_affine.default", fits="x float, zero_point number -> int", wide=True)
def quantize_affine(
    x: Tensor,
    block_size: list[int],
    scale: Tensor,
    zero_point: Tensor | None,
    output_dtype: Any = None,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    *,
    target: Target,
) -> Steps:
    blocks = Blocks(x.shape, block_size)
    out = yield Out(x.shape)
    low, high = _range(quant_min, quant_max, out.dtype)
    zero = blocks.parameter(zero_point) if zero_point is not None and zero_point.numel else 0
    shape = tuple(blocks.shape)
    yield _quantized(blocks.of(x), blocks.parameter(scale), zero, low, high, out, target, shape=shape)


@op("torchao.dequantize_affine.default", fits="x int, scale float, zero_point number -> float", wide=True)
def dequantize_affine(
    x: Tensor,
    block_size: list[int],
    scale: Tensor,
    zero_point: Tensor | None,
    input_dtype: Any = None,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    output_dtype: Any = None,
    *,
    target: Target,
) -> Steps:
    blocks = Blocks(x.shape, block_size)
    out = yield Out(x.shape)
    zero = blocks.parameter(zero_point) if zero_point is not None and zero_point.numel else 0
    yield _dequantized(blocks.of(x), blocks.parameter(scale), zero, out, target, shape=tuple(blocks.shape))


def _qparams(
    rule: str,
    x: Tensor,
    shape: Shape,
    dims: Sequence[int],
    limits: tuple[Number, Number, float],
    scale: Tensor,
    zero: Tensor,
    t: Target,
) -> Steps:
    """Choose a scale and a zero point for each row of x, over the dimensions `dims` of its `shape`.

    The limits are the first and the last integer, and the smallest scale. Short rows take one dispatch.
    """
    first, last, eps = limits
    if not scale.numel:
        return
    stored = store_type(scale.dtype, t), store_type(zero.dtype, t)
    rows = rows_of(shape, dims)
    numbers = {"rows": rows.count, "first": float(first), "last": float(last), "eps": eps}
    in_order = len(rows.kept[0]) <= 1 and rows.reduced[1] in ((1,), ()) and not rows.columns
    if in_order and lanes_for(rows, t)[1] == 1:
        lanes = choose(ALONG_ROWS, rows.count, rows.length, t)
        kernel = choose_qparams(rule, x.dtype, *stored, bool(rows.quads), lanes, t)
        groups = lanes.groups(rows.count)
        yield Dispatch(kernel, [x], [scale, zero], groups, numbers | {"length": rows.length})
        return
    lowest = yield Scratch((rows.count,), DType.F32)
    highest = yield Scratch((rows.count,), DType.F32)
    yield from reduce("amin", x, dims, lowest, t, kind="f32", shape=shape)
    yield from reduce("amax", x, dims, highest, t, kind="f32", shape=shape)
    kernel = qparams_of_extremes(rule, *stored, t)
    groups = -(-rows.count // kernel.kernel.workgroup)
    yield Dispatch(kernel, [lowest, highest], [scale, zero], groups, numbers | {"length": rows.length})


@op("torchao.choose_qparams_affine.default", fits="x float -> float, number")
def choose_qparams_affine(
    x: Tensor,
    mapping_type: str,
    block_size: list[int],
    target_dtype: Any = None,
    quant_min: Number | None = None,
    quant_max: Number | None = None,
    eps: float | None = None,
    scale_dtype: Any = None,
    zero_point_dtype: Any = None,
    keepdim: bool = False,
    *,
    target: Target,
) -> Steps:
    """Choose parameters such that the extremes of each block and zero are within the range.

    Unlike torchao, it takes a range that is not given to be int8's, because a delegate's file does not say the target
    dtype. x is float, as it is wherever activations are quantised.
    """
    if mapping_type not in RULES or mapping_type == "PER_TOKEN":
        raise InvalidProgram(f"the mapping type '{mapping_type}' is not supported")
    blocks = Blocks(x.shape, block_size)
    shape = tuple(blocks.counts) if keepdim else blocks.outer
    scale = yield Out(shape)
    zero = yield Out(shape)
    low, high = _range(quant_min, quant_max, DType.I8)
    limits = low, high, SMALLEST[x.dtype] if eps is None else eps
    yield from _qparams(mapping_type, x, tuple(blocks.shape), blocks.inside, limits, scale, zero, target)


@op("quantized_decomposed.choose_qparams.tensor", fits="x float -> float, number")
def choose_qparams_tensor(
    x: Tensor, quant_min: int, quant_max: int, eps: float, dtype: Any, *, target: Target
) -> Steps:
    """Unlike PyTorch, which chooses in float64, it gives an exact zero point only for ranges of at most 24 bits, which
    includes all that weights and activations have: the GPU has no float64.
    """
    scale = yield Out((1,))
    zero = yield Out((1,))
    yield from _qparams("ASYMMETRIC", x, x.shape, range(x.rank), (quant_min, quant_max, eps), scale, zero, target)


@op("quantized_decomposed.choose_qparams_per_token_asymmetric.default", fits="x float[..., _] -> float, number")
def choose_qparams_per_token_asymmetric(x: Tensor, dtype: Any, *, target: Target) -> Steps:
    shape = (*x.shape[:-1], 1)
    scale = yield Out(shape)
    zero = yield Out(shape)
    yield from _qparams("PER_TOKEN", x, x.shape, (x.rank - 1,), (-128, 127, EPSILON), scale, zero, target)


@op("et_vk.q8ta_add.default", fits="a int8")
def q8ta_add(
    a: Tensor,
    b: Tensor,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    output_scale: float,
    output_zero_point: int,
    alpha: float = 1.0,
    *,
    target: Target,
) -> Steps:
    out = yield Out(broadcast(a.shape, b.shape), DType.I8)
    body = REQUANTIZE.format(value="(a - a_zero) * a_scale + alpha * ((b - b_zero) * b_scale)")
    scalars = {"a_zero": a_zero_point, "a_scale": a_scale, "b_zero": b_zero_point, "b_scale": b_scale, "alpha": alpha}
    scalars |= {"inverse": 1.0 / output_scale, "zero": output_zero_point}
    yield pointwise("q8ta_add", body, [a, b], out, target, scalars=scalars, compute=DType.F32)


@op("et_vk.q8ta_relu.default", fits="x int8")
def q8ta_relu(
    x: Tensor, input_scale: float, input_zero_point: int, output_scale: float, output_zero_point: int, *, target: Target
) -> Steps:
    out = yield Out(x.shape, DType.I8)
    body = REQUANTIZE.format(value="max((a - a_zero) * a_scale, 0.0)")
    scalars = {"a_zero": input_zero_point, "a_scale": input_scale}
    scalars |= {"inverse": 1.0 / output_scale, "zero": output_zero_point}
    yield pointwise("q8ta_relu", body, [x], out, target, scalars=scalars, compute=DType.F32)


@op("et_vk.q8ta_pixel_shuffle.default", fits="x int8")
def q8ta_pixel_shuffle(
    x: Tensor,
    input_scale: float,
    input_zero_point: int,
    output_inv_scale: float,
    output_zero_point: int,
    upscale_factor: int,
    *,
    target: Target,
) -> Steps:
    """Shuffle x (…, C · r², H, W) to (…, C, H · r, W · r)."""
    r = upscale_factor
    if x.rank < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(f"{list(x.shape)} cannot be shuffled by {r}")
    *lead, channels, h, w = x.shape
    out = yield Out((*lead, channels // (r * r), h * r, w * r), DType.I8)
    planes = math.prod(lead) * channels // (r * r)
    step = h * w
    view = Strided(x, (r * r * step, w, r * step, 1, step))  # over (plane, y, y within, x, x within)
    body, shape = REQUANTIZE.format(value="(a - a_zero) * a_scale"), (planes, h, r, w, r)
    scalars = {"a_zero": input_zero_point, "a_scale": input_scale}
    scalars |= {"inverse": output_inv_scale, "zero": output_zero_point}
    yield pointwise("q8ta_pixel_shuffle", body, [view], out, target, shape=shape, scalars=scalars, compute=DType.F32)
