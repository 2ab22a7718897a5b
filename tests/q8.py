"""Caches in 8 bits as float64 has them, and values whose rounding leaves no doubt."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptegpu.dtypes import BLOCK

Array = np.ndarray[Any, Any]
LARGE = 5  # the element of each block with the largest magnitude


def coarse(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    """Return values that 8 bits change by up to 40 % of a step, which is large beside most of them.

    None is near the middle between two steps, where a last bit would decide.
    """
    blocks = rng.integers(-4, 5, (int(np.prod(shape)) // BLOCK, BLOCK)) + rng.uniform(-0.4, 0.4, (1, BLOCK))
    blocks[:, LARGE] = 127 * rng.choice([-1, 1], len(blocks))
    return np.asarray(blocks * rng.uniform(0.1, 0.3, (len(blocks), 1)), dtype).reshape(shape)


def stored(x: Array) -> Array:
    """Return values as a cache in 8 bits gives them back, in float64: multiples of a step with 15 significant bits."""
    blocks = x.astype(np.float64).reshape(-1, BLOCK)
    step = np.abs(blocks).max(1, keepdims=True) / 127
    fraction, exponent = np.frexp(step)
    step = np.ldexp(np.ceil(fraction * 2**15), exponent - 15)
    return np.asarray(np.rint(blocks / np.where(step, step, 1)) * step).reshape(x.shape)


def attention(q: Array, k: Array, v: Array, start: int) -> Array:
    """Attend causally with q [1, S, H, D] from position `start` on to k and v [1, C, H', D], in float64."""
    q, k, v = (x.astype(np.float64)[0].swapaxes(0, 1) for x in (q, k, v))  # [H, S, D]
    k, v = (np.repeat(x, len(q) // len(x), 0) for x in (k, v))
    hidden = np.arange(k.shape[1]) > start + np.arange(q.shape[1])[:, None]
    scores = np.where(hidden, -np.inf, q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2]))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray((p / p.sum(-1, keepdims=True)) @ v).swapaxes(0, 1)[None]
