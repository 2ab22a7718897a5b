"""Matrix products, distances and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ExecutionError
from .promotion import FLOAT64, axes, compute_type, to
from .reduce import p_norm
from .registry import Array, Number, afford, portable


@portable("aten.mm.default", "aten.bmm.default", sizes=lambda x, y: [*x.shape[:-1], y.shape[-1]])
def matmul(x: Array, y: Array) -> Array:
    dtype = compute_type(x.dtype)
    return np.matmul(to(x, dtype), to(y, dtype))


@portable("aten.addmm.default", sizes=lambda bias, x, y, *_: [x.shape[0], y.shape[1]])
def addmm(bias: Array, x: Array, y: Array, beta: Number = 1, alpha: Number = 1) -> Array:
    product = matmul(x, y)
    if alpha != 1:
        product = product * to(alpha, product.dtype)
    return product if beta == 0 else product + to(bias, product.dtype) * to(beta, product.dtype)


@portable("aten.linear.default", sizes=lambda x, weight, bias: [*x.shape[:-1], weight.shape[0]])
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    product = matmul(x, weight.T)
    return product if bias is None else product + to(bias, product.dtype)


@portable("aten._cdist_forward.default")
def cdist(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    afford(math.prod(x1.shape[:-1]) * x2.shape[-2] * max(x1.shape[-1], 1) * 8)
    differences = np.abs(x1[..., :, None, :].astype(FLOAT64) - x2[..., None, :, :])  # (…, P, R, M)
    return p_norm(differences, p, (differences.ndim - 1,))


@portable("aten._pdist_forward.default")
def pdist(x: Array, p: float = 2.0) -> Array:
    afford(len(x) ** 2 * x.shape[1] * 8)
    first, second = np.triu_indices(len(x), 1)
    return p_norm(np.abs(x[first].astype(FLOAT64) - x[second]), p, (1,))


def _fft_scale(normalization: int, count: int) -> float:
    """Return the factor of a mode: 0 keeps the sum, 1 divides by the root of the count, 2 by the count."""
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization]


@portable("aten._fft_r2c.default")
def fft_r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    along = axes(dim, x.ndim)
    function = np.fft.rfftn if onesided else np.fft.fftn
    return function(x, axes=along) * _fft_scale(normalization, math.prod(x.shape[a] for a in along))


@portable("aten._fft_c2r.default")
def fft_c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    along = axes(dim, x.ndim)
    sizes = [*(x.shape[a] for a in along[:-1]), last_dim_size]
    if x.shape[along[-1]] != last_dim_size // 2 + 1:
        raise ExecutionError(f"{x.shape[along[-1]]} frequencies do not give {last_dim_size} samples")
    count = math.prod(sizes)
    return np.fft.irfftn(x, sizes, along) * (count * _fft_scale(normalization, count))
