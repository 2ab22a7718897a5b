"""Norms, softmax and gated units. Statistics are kept in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ShapeError, UnsupportedProgram
from .elementwise import sigmoid
from .promotion import FLOAT64, axis, floats
from .registry import Array, portable

Normalised = tuple[Array, Array, Array]  # the result, means, reciprocal deviations


def _softmax(name: str, log: bool) -> None:
    @portable(f"aten.{name}.default")
    def kernel(x: Array, dim: int, half_to_float: bool) -> Array:
        if x.size == 0:
            return x
        (x,) = floats(x)
        along = axis(dim, x.ndim) if x.ndim else ()
        shifted = x - x.max(axis=along, keepdims=True)
        powers = np.exp(shifted)
        total = powers.sum(axis=along, keepdims=True, dtype=FLOAT64)
        return shifted - np.log(total) if log else powers / total


_softmax("_softmax", log=False)
_softmax("_log_softmax", log=True)


@portable("aten.glu.default")
def glu(x: Array, dim: int = -1) -> Array:
    along = axis(dim, x.ndim)
    if x.ndim == 0 or x.shape[along] % 2:
        raise ShapeError(f"dimension {dim} of sizes {list(x.shape)} cannot be halved")
    (x,) = floats(x)
    value, gate = np.split(x, 2, along)
    return value * sigmoid(gate)


def _normalised(x: Array, along: tuple[int, ...], eps: float) -> Normalised:
    wide = x.astype(FLOAT64)
    mean = wide.mean(axis=along, keepdims=True)
    rstd = 1 / np.sqrt(np.square(wide - mean).mean(axis=along, keepdims=True) + eps)
    return (wide - mean) * rstd, mean, rstd


def _scaled(x: Array, weight: Array | None, bias: Array | None, shape: Sequence[int] = ()) -> Array:
    if weight is not None:
        x = x * weight.reshape(shape or weight.shape)
    return x if bias is None else x + bias.reshape(shape or bias.shape)


@portable("aten.native_layer_norm.default")
def native_layer_norm(
    x: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> Normalised:
    rank = len(normalized_shape)
    if x.shape[x.ndim - rank :] != tuple(normalized_shape):
        raise ShapeError(f"sizes {list(x.shape)} do not end in {list(normalized_shape)}")
    result, mean, rstd = _normalised(x, tuple(range(x.ndim - rank, x.ndim)), eps)
    return _scaled(result, weight, bias), mean, rstd


@portable("aten.native_group_norm.default")
def native_group_norm(
    x: Array, weight: Array | None, bias: Array | None, n: int, channels: int, pixels: int, group: int, eps: float
) -> Normalised:
    result, mean, rstd = _normalised(x.reshape(n, group, channels // group * pixels), (2,), eps)
    return _scaled(result.reshape(x.shape), weight, bias, _channels(x)), mean[..., 0], rstd[..., 0]


def _channels(x: Array) -> list[int]:
    """Return the shape in which one value per channel broadcasts to x (N, C, …)."""
    return [-1] + [1] * (x.ndim - 2)


@portable("aten._native_batch_norm_legit_no_training.default")
def native_batch_norm_no_training(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> Normalised:
    rstd = 1 / np.sqrt(running_var.astype(FLOAT64) + eps)
    result = (x - running_mean.reshape(_channels(x))) * rstd.reshape(_channels(x))
    return _scaled(result, weight, bias, _channels(x)), np.zeros(0), np.zeros(0)


@portable("aten._native_batch_norm_legit.default")
def native_batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> Normalised:
    if training:
        raise UnsupportedProgram(
            "batch norm that updates running statistics: call eval() on the model before exporting it"
        )
    return native_batch_norm_no_training(x, weight, bias, running_mean, running_var, momentum, eps)


@portable("aten._native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> Normalised:
    result, mean, rstd = _normalised(x, (0, *range(2, x.ndim)), eps)
    return _scaled(result, weight, bias, _channels(x)), mean.reshape(-1), rstd.reshape(-1)
