"""The settings of the sampler, shared by callers (`ptegpu.models.text`), the operator and its kernels."""

from __future__ import annotations

SETTINGS = ("scale", "top_k", "top_p", "floor", "penalty", "relief", "seed", "step")  # i32[8]; floats as their bits

GREEDY, DRAW, TOP_K, TOP_P, PENALTY = 1, 2, 4, 8, 16  # bits of `how`; 0: choose nothing
_WAYS = (GREEDY, DRAW, DRAW | TOP_K, DRAW | TOP_P, DRAW | TOP_K | TOP_P)
MODES = (0, *_WAYS, *(way | PENALTY for way in _WAYS))  # all values of `how`


def words_of(vocabulary: int) -> int:
    """Return the number of 32-bit words with one bit per token."""
    return -(-vocabulary // 32)
