"""The parts of a card: how texts, pictures and sounds become inputs of a program, and the meaning of its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

SIDE, RATES = 1 << 14, (1000, 192_000)  # most pixels of a picture's side; samples per second
MOST = 1 << 24  # upper bound of sizes in `Speech` and `VisionSpec`
TILE = 4096  # most pixels of a side, of pictures in a text

Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
RESAMPLES: tuple[Resample, ...] = get_args(Resample)  # in Pillow's order


def require(holds: bool, problem: str) -> None:
    """Raise ValueError with the problem unless the condition holds."""
    if not holds:
        raise ValueError(problem)


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens int64 (batch, length), a mask of the same shape, and token types if `types`."""

    length: int  # most tokens, including special ones
    batch: int  # most texts in one call
    types: bool = False
    pad: int = 0  # the token that fills shorter texts
    mask: int | None = None  # the token that stands for the word to fill in
    masked: bool = True  # the mask hides padding
    fixed: bool = False  # all texts are padded to `length`

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        _check_int("length", self.length, 1, 1 << 20)
        _check_int("batch", self.batch, 1, 1 << 16)
        _check_int("pad", self.pad, 0, (1 << 31) - 1)


@dataclass(frozen=True, slots=True)
class Image:
    """Pixels float32 (batch, channels, height, width): resized, center-cropped, then (pixel · scale - mean) / std."""

    height: int
    width: int
    channels: int
    batch: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    resample: Resample = "bilinear"
    shortest: int | None = None  # the shorter side is resized to this, the other in proportion
    resize: tuple[int, int] | None = None  # height and width; None, as `shortest`: no resizing

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        numbers = (*self.mean, *self.std, self.scale)
        for side in (self.height, self.width, self.shortest or 1, *(self.resize or ())):
            _check_int("a picture's side", side, 1, SIDE)
        require(self.channels in (1, 3), f"channels is {self.channels}: expected 1 or 3")
        _check_int("batch", self.batch, 1, 1 << 16)
        require(len(self.mean) == len(self.std) == self.channels, "expected a mean and a std for each channel")
        finite = all(map(math.isfinite, numbers)) and 0.0 not in self.std
        require(finite, f"mean, std and scale are {numbers}: expected finite numbers and no std of 0")


@dataclass(frozen=True, slots=True)
class Audio:
    """A wave float32 (batch, samples), or its log-mel spectrogram (batch, mels, frames) or (batch, frames, mels)."""

    rate: int  # samples per second
    most: int  # samples
    least: int  # samples; shorter sounds are padded with zeros
    step: int = 1  # samples between two frames; less than a step more makes hardly any difference
    features: Literal["wave", "whisper", "fbank"] = "wave"
    normalize: bool = False  # a wave to mean 0 and variance 1
    mels: int = 0
    frames: int = 0
    mean: float = 0.0  # fbank becomes (x - mean) / (2 · std)
    std: float = 0.5

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        _check_int("rate", self.rate, *RATES)
        _check_int("most", self.most, 1, 1 << 28)
        _check_int("least", self.least, 1, self.most)
        _check_int("step", self.step, 1, self.most)
        if self.features != "wave":
            _check_int("mels", self.mels, 1, 1024)
            _check_int("frames", self.frames, 1, 1 << 20)
        finite = math.isfinite(self.mean) and math.isfinite(self.std) and self.std != 0
        require(finite, f"mean and std are {self.mean} and {self.std}: expected finite numbers and no std of 0")


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The pictures of a language model: each becomes tiles of one size, and each tile rows that replace tokens."""

    size: int  # pixels of a tile's side
    rows: int  # of each tile
    dim: int  # of a row
    token: int  # that stands for a row in a prompt
    longest: int  # pixels of a resized picture's longer side
    split: bool  # a picture is cut into tiles, in addition to the picture in one tile
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    mark: str = "<image>"  # stands for a picture in a text, and for each row
    around: str = "<fake_token_around_image>"
    whole: str = "<global-img>"

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        for key in ("size", "rows", "dim", "longest", "token"):
            _check_int(key, getattr(self, key), int(key != "token"), MOST)
        require(all(map(math.isfinite, (*self.mean, *self.std))), "mean and std are not finite")
        require(all(self.std) and self.longest <= TILE and self.size <= TILE, "sizes or std are out of range")
        require(all((self.mark, self.around, self.whole)), "mark, around or whole is empty")

    def text(self, down: int, across: int) -> str:
        """Return a prompt's text for a picture of `down` by `across` tiles, and for the picture in one tile."""
        rows, text = self.mark * self.rows, ""
        for r in range(1, down + 1):
            text += "".join(f"{self.around}<row_{r}_col_{c}>{rows}" for c in range(1, across + 1)) + "\n"
        return text + ("\n" if down else "") + self.around + self.whole + rows + self.around


@dataclass(frozen=True, slots=True)
class Speech:
    """The inputs and outputs of a Whisper model: sizes, special tokens, and tokens that are never chosen."""

    rate: int  # samples per second
    hop: int  # samples from one frame to the next
    window: int  # samples of a frame
    frames: int  # of one call
    mels: int
    context: int  # tokens
    vocab: int
    start: int  # the token that every text begins with
    end: int  # ids below it are text
    no_timestamps: int | None = None  # the next token is the timestamp 0.00; None: no timestamps
    initial: int | None = None  # the latest timestamp that a window may begin with
    no_speech: int | None = None
    languages: dict[str, int] | None = None  # None: the model has only one
    tasks: dict[str, int] | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        for key in ("rate", "hop", "window", "frames", "mels", "context", "vocab"):
            _check_int(key, getattr(self, key), 1, MOST)
        named = [*(self.languages or {}).values(), *(self.tasks or {}).values()]
        optional = [token for token in (self.no_timestamps, self.no_speech) if token is not None]
        for token in (self.start, self.end, *named, *optional, *self.suppressed, *self.suppressed_first):
            _check_int("a token", token, 0, self.vocab - 1)
        if self.initial is not None:
            _check_int("initial", self.initial, 0, self.vocab)
        fits = self.frames % 2 == 0 and self.window <= 2 * self.frames * self.hop and self.context >= 8
        require(fits, "the sizes do not fit together")

    @property
    def first_timestamp(self) -> int:
        """Return the id of the timestamp 0.00, or an id after all tokens if the model has no timestamps."""
        return self.vocab if self.no_timestamps is None else self.no_timestamps + 1

    @property
    def seconds(self) -> float:
        """Return the length of a window."""
        return self.frames * self.hop / self.rate

    @property
    def precision(self) -> float:
        """Return the seconds from one timestamp to the next: two frames."""
        return 2 * self.hop / self.rate


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(fits, f"{name} is {value!r}: expected {low} to {high}")
