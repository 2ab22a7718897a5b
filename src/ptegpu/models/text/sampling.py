"""How the next token is chosen: the settings that a caller gives, as the words that the GPU reads."""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import InvalidInput
from ...sampling import DRAW, GREEDY, PENALTY, TOP_K, TOP_P, words_of

SEEDS = 1 << 32


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 is greedy: always the likeliest token. The other settings leave tokens out, in the order given.

    `top_k` keeps the k likeliest, 0 all; `top_p` the fewest of these with that much of their probability; `min_p` those
    at least that likely relative to the likeliest. `repeat_penalty` above 1 makes tokens of the context less likely.
    The same seed on the same logits gives the same tokens; without one it is random.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None
    _constant: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0, math.inf, "at least 0")
        _check("top_k", self.top_k, 0, 2**31 - 1, "an int of at least 0")
        _check("top_p", self.top_p, 0, 1, "above 0 and at most 1", above=True)
        _check("min_p", self.min_p, 0, 1, "at least 0 and at most 1")
        _check("repeat_penalty", self.repeat_penalty, 0, math.inf, "above 0", above=True)
        seed = secrets.randbelow(SEEDS) if self.seed is None else self.seed
        _check("seed", seed, 0, SEEDS - 1, "an int from 0 to 4294967295")
        object.__setattr__(self, "seed", seed)
        scale = 1 / self.temperature if self.temperature else 1.0
        floor = math.log(self.min_p) if self.min_p else -3e38
        penalty = self.repeat_penalty
        packed = struct.pack("<fifff", _single(scale), self.top_k, self.top_p, floor, _single(penalty))
        object.__setattr__(self, "_constant", packed + struct.pack("<fI", _single(1 / penalty), seed))

    @property
    def how(self) -> int:
        """Which steps of the selection are needed."""
        if not self.temperature:
            how = GREEDY
        else:
            how = DRAW | (TOP_K if self.top_k else 0) | (TOP_P if self.top_p < 1 else 0)
        return how | (PENALTY if self.penalises else 0)

    @property
    def penalises(self) -> bool:
        return self.repeat_penalty != 1

    def words(self, step: int) -> np.ndarray:
        """The settings operand of the sampling operator, int32[8], for the `step`-th token."""
        return np.frombuffer(self._constant + struct.pack("<I", step), np.int32)

    def row(self, step: int) -> bytes:
        """The same and `how`, as one of many rows has them."""
        return self._constant + struct.pack("<Ii", step, self.how)


class Seen:
    """A bit per token of the vocabulary, for the repetition penalty; a single word where there is none."""

    def __init__(self, vocabulary: int, needed: bool) -> None:
        self.needed = needed
        self.bits = np.zeros(words_of(vocabulary) if needed else 1, np.int32)
        self._count = 0  # tokens that have theirs

    def update(self, tokens: Sequence[int]) -> np.ndarray:
        """The bits with those of all of a text's tokens; it only ever gets longer."""
        if self.needed:
            view = self.bits.view(np.uint32)
            for t in tokens[self._count :]:
                view[t >> 5] |= np.uint32(1 << (t & 31))
            self._count = len(tokens)
        return self.bits


def _single(value: float) -> float:
    """Within float32."""
    return min(value, 3.4e38)


def _check(name: str, value: float, low: float, high: float, wanted: str, *, above: bool = False) -> None:
    whole = " int " in f" {wanted} "
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high or (above and value == low):
        raise InvalidInput(f"{name} must be {wanted}, not {value!r}")
