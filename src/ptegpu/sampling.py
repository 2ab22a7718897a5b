"""How the next token is chosen: what callers (`ptegpu.models.text`), the operator and its kernels agree on."""

from __future__ import annotations

SETTINGS = ("scale", "top_k", "top_p", "floor", "penalty", "relief", "seed", "step")  # i32[8]; but for ints, f32 bits

GREEDY, DRAW, TOP_K, TOP_P, PENALTY = 1, 2, 4, 8, 16  # of `how`; 0: choose nothing
_WAYS = (GREEDY, DRAW, DRAW | TOP_K, DRAW | TOP_P, DRAW | TOP_K | TOP_P)
MODES = (0, *_WAYS, *(way | PENALTY for way in _WAYS))  # that `how` can have


def words_of(vocabulary: int) -> int:
    """Return how many words have a bit per token."""
    return -(-vocabulary // 32)
