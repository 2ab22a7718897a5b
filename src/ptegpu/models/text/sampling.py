"""The choice of the next token: settings that a caller gives, as the operands that the GPU reads."""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...errors import InvalidInput
from ...sampling import DRAW, GREEDY, PENALTY, SETTINGS, TOP_K, TOP_P, words_of

SEEDS = 1 << 32
pack_step, pack_row = struct.Struct("<I").pack, struct.Struct("<Iii").pack
LARGEST = 3.4e38  # within float32
NO_SEQUENCE = -1  # of a row whose token no later run takes from the GPU
UNUSED = struct.pack(f"<{len(SETTINGS) + 1}ii", *(len(SETTINGS) + 1) * [0], NO_SEQUENCE)  # where no token is sampled


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for choosing tokens. Temperature 0 is greedy; filters apply in the order of the fields.

    `top_k` keeps the k likeliest tokens, 0 all of them. `top_p` keeps the smallest set with that share of their
    probability. `min_p` keeps tokens at least that likely relative to the likeliest. `repeat_penalty` above 1 makes
    tokens of the context less likely. The same seed on the same logits gives the same tokens; by default, it is random.
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
        scale = min(LARGEST, 1 / self.temperature) if self.temperature else 1.0
        floor = math.log(self.min_p) if self.min_p else -3e38
        penalties = (min(LARGEST, factor) for factor in (self.repeat_penalty, 1 / self.repeat_penalty))
        constant = struct.pack("<fiffffI", scale, self.top_k, self.top_p, floor, *penalties, seed)
        object.__setattr__(self, "_constant", constant)

    @property
    def flags(self) -> int:
        """The steps of the selection that these settings need."""
        if not self.temperature:
            flags = GREEDY
        else:
            flags = DRAW | (TOP_K if self.top_k else 0) | (TOP_P if self.top_p < 1 else 0)
        return flags | (PENALTY if self.penalises else 0)

    @property
    def penalises(self) -> bool:
        return self.repeat_penalty != 1

    def words(self, step: int) -> np.ndarray:
        """Return the settings operand of the sampling operator, int32[8], for the `step`-th token."""
        return np.frombuffer(self._constant + pack_step(step), np.int32)

    def row(self, step: int, sequence: int) -> bytes:
        """Return the settings, the flags and the sequence of one of several rows."""
        return self._constant + pack_row(step, self.flags, sequence)


class Sampler:
    """The sampling of one request: its settings, and a bit for each token of its text if a penalty counts them."""

    def __init__(self, sampling: Sampling, vocabulary: int) -> None:
        self.sampling, self.flags, self.penalises = sampling, sampling.flags, sampling.penalises
        self._constant, self._vocabulary = sampling._constant, vocabulary
        self._bits = np.zeros(words_of(vocabulary) if self.penalises else 1, np.int32)
        self._counted = 0  # tokens of the text whose bits are set

    def operands(self, step: int, text: Sequence[int]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return settings, seen tokens and flags, for the token after `text`, the `step`-th that is generated."""
        words = np.frombuffer(self._constant + pack_step(step), np.int32)
        return words, self.seen_bits(text) if self.penalises else self._bits, self.flags

    def seen_bits(self, text: Sequence[int]) -> np.ndarray:
        """Return the bits of all tokens of a text, which only grows between calls. Rows of pictures have none."""
        if self.penalises:
            _mark(self._bits, (token for token in text[self._counted :] if token < self._vocabulary))
            self._counted = len(text)
        return self._bits


NO_SAMPLING = np.zeros(len(SETTINGS), np.int32), np.zeros(1, np.int32), 0  # operands of a call for scores alone


class SampledRow(NamedTuple):
    """A row after which a token is chosen, the `step`-th of the text; it becomes the latest token of the sequence."""

    sampler: Sampler
    step: int
    text: Sequence[int]
    proposals: Sequence[int] = ()  # after the text
    sequence: int = NO_SEQUENCE


def row_operands(rows: Iterable[SampledRow], vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return settings and seen tokens for several rows.

    There is at least one row of settings. Rows of seen tokens are empty if no sampler has a penalty.
    """
    rows = list(rows)
    settings = np.frombuffer(
        b"".join(row.sampler.sampling.row(row.step, row.sequence) for row in rows) or UNUSED, np.int32
    )
    settings = settings.reshape(max(1, len(rows)), -1)
    penalised = any(row.sampler.penalises for row in rows)
    bits = np.zeros((len(settings), words_of(vocabulary) if penalised else 0), np.int32)
    for k, (sampler, _, text, proposals, _) in enumerate(rows):
        if sampler.penalises:
            bits[k] = sampler.seen_bits(text)
            _mark(bits[k], proposals)
    return settings, bits


def _mark(bits: np.ndarray, tokens: Iterable[int]) -> None:
    """Set the bits of tokens."""
    words = bits.view(np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))


def _check(name: str, value: float, low: float, high: float, expected: str, *, above: bool = False) -> None:
    is_int = " int " in f" {expected} "
    is_number = isinstance(value, int if is_int else int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above and value == low):
        raise InvalidInput(f"{name} must be {expected}, not {value!r}")
