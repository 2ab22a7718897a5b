"""Quantisation, its inverse, the choice of its parameters, and embeddings with quantised weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from .index import checked
from .promotion import FLOAT32, axis, floats, to
from .registry import Array, Number, afford, portable

EPSILON = float(np.finfo(np.float32).eps)


def _scalar(value: Array | Number) -> Number:
    return value.item() if isinstance(value, np.ndarray) else value


def _along(values: Array, x: Array, dim: int) -> Array:
    """Return one value per channel in a shape that broadcasts along dimension `dim` of x."""
    return values.reshape([-1 if k == axis(dim, x.ndim) else 1 for k in range(x.ndim)])


@portable("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor")
def quantize_per_tensor(
    x: Array, scale: Array | Number, zero_point: Array | Number, quant_min: int, quant_max: int, dtype: Any
) -> Array:
    (x,) = floats(x)
    return np.clip(np.rint(x * (1.0 / _scalar(scale))) + _scalar(zero_point), quant_min, quant_max)


@portable("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    x: Array, scales: Array, zero_points: Array, axis: int, quant_min: int, quant_max: int, dtype: Any
) -> Array:
    (x,) = floats(x)
    quantized = np.rint(x * (1.0 / _along(scales, x, axis))) + _along(zero_points, x, axis)
    return np.clip(quantized, quant_min, quant_max)


@portable("quantized_decomposed.quantize_per_token.default")
def quantize_per_token(
    x: Array, scales: Array, zero_points: Array, quant_min: int, quant_max: int, dtype: Any
) -> Array:
    (x,) = floats(x)
    return np.clip(np.rint(x * (1.0 / scales) + zero_points), quant_min, quant_max)


@portable("quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor")
def dequantize_per_tensor(
    x: Array,
    scale: Array | Number,
    zero_point: Array | Number,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
) -> Array:
    return (to(x, FLOAT32) - _scalar(zero_point)) * _scalar(scale)


@portable("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    x: Array,
    scales: Array,
    zero_points: Array | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
) -> Array:
    zero = 0 if zero_points is None else _along(zero_points, x, axis)
    return (to(x, FLOAT32) - zero) * _along(scales, x, axis)


@portable("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    x: Array, scales: Array, zero_points: Array, quant_min: int, quant_max: int, dtype: Any, output_dtype: Any
) -> Array:
    return (to(x, FLOAT32) - zero_points) * scales


@portable("quantized_decomposed.choose_qparams.tensor")
def choose_qparams(x: Array, quant_min: int, quant_max: int, eps: float, dtype: Any) -> tuple[Array, Array]:
    """Return a scale and a zero point, each of one element, for a range that includes zero."""
    low, high = to(np.minimum(x.min(), 0), FLOAT32), to(np.maximum(x.max(), 0), FLOAT32)
    scale = np.maximum((high - low) / FLOAT32.type(quant_max - quant_min), FLOAT32.type(eps))
    zero_point = np.clip(quant_min - np.rint(low / scale), quant_min, quant_max)
    return scale.reshape(1), zero_point.reshape(1)


@portable("quantized_decomposed.choose_qparams_per_token_asymmetric.default")
def choose_qparams_per_token_asymmetric(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Return scales and zero points for int8, one per row of the last dimension."""
    quant_min, quant_max = -128, 127
    (x,) = floats(x)
    low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
    scale = np.maximum((high - low) / (quant_max - quant_min), x.dtype.type(EPSILON))
    least, most = low / scale, high / scale
    zero_point = np.where(quant_min + least + quant_max + most > 0, quant_min - least, quant_max - most)
    return scale, np.rint(np.clip(zero_point, quant_min, quant_max))


def _rows(weight: Array, indices: Array, bits: int) -> Array:
    """Return the rows at `indices`, unpacked: 4-bit values have the high nibble first, 2-bit ones the low bits."""
    packed = weight[checked(indices, weight.shape[0])]
    if bits == 8:
        return packed
    shifts = {4: [4, 0], 2: [0, 2, 4, 6]}[bits]
    mask = (1 << bits) - 1
    values = np.stack([packed.view(np.uint8) >> s & mask for s in shifts], -1)
    return values.reshape(*packed.shape[:-1], -1).astype(np.int8) - (1 << (bits - 1))


def _register_embedding(name: str, bits: int) -> None:
    @portable(f"quantized_decomposed.{name}.default", f"quantized_decomposed.{name}.dtype")
    def embedding(
        weight: Array,
        weight_scales: Array,
        weight_zero_points: Array | None,
        weight_quant_min: int,
        weight_quant_max: int,
        indices: Array,
        dtype: Any = None,
    ) -> Array:
        """Look up rows; scales and zero points are one per row, or (rows, groups)."""
        afford(indices.size * weight.shape[-1] * (8 // bits) * 4)
        rows = _rows(weight, indices, bits)
        scales = weight_scales.reshape(len(weight), -1)[indices]
        if rows.shape[-1] % scales.shape[-1]:
            raise ShapeError(f"{scales.shape[-1]} groups do not divide {rows.shape[-1]} columns")
        grouped = to(rows, FLOAT32).reshape(*scales.shape, -1)
        if weight_zero_points is not None:
            grouped = grouped - weight_zero_points.reshape(len(weight), -1)[indices][..., None]
        return (grouped * scales[..., None]).reshape(rows.shape)


for _name, _bits in {"embedding_byte": 8, "embedding_4bit": 4, "embedding_2bit": 2}.items():
    _register_embedding(_name, _bits)
