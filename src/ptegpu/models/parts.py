"""The parts of a card: how texts, pictures and sounds become the inputs of a program, and what its tokens mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

SIDE, RATES = 1 << 14, (1000, 192_000)  # pixels of a picture's side; samples in a second
MOST = 1 << 24  # of any number in a part about speech
TILE = 4096  # pixels of a side, of pictures in a text

Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
RESAMPLES: tuple[Resample, ...] = get_args(Resample)  # in Pillow's order


def require(holds: bool, problem: str) -> None:
    """Raise ValueError with the problem unless the condition holds."""
    if not holds:
        raise ValueError(problem)


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens int64 (batch, length), a mask of the same shape, and token types where `types`."""

    length: int  # most tokens, special ones included
    batch: int  # most texts in one call
    types: bool = False
    pad: int = 0  # the token that fills shorter texts
    mask: int | None = None  # the token that is to be filled in
    masked: bool = True  # the mask hides padding
    fixed: bool = False  # all texts are filled to `length`

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        require(1 <= self.length <= 1 << 20, f"texts of {self.length} tokens")
        require(1 <= self.batch <= 1 << 16, f"batches of {self.batch}")
        require(0 <= self.pad < 1 << 31, f"the padding is token {self.pad}")


@dataclass(frozen=True, slots=True)
class Image:
    """Pixels float32 (batch, channels, height, width): resized, cropped in the middle, (pixel · scale - mean) / std."""

    height: int
    width: int
    channels: int
    batch: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    resample: Resample = "bilinear"
    shortest: int | None = None  # what the shorter side is resized to, the other in proportion
    resize: tuple[int, int] | None = None  # height and width it is resized to; neither: the crop alone

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        sides = (self.height, self.width, self.shortest or 1, *(self.resize or ()))
        numbers = (*self.mean, *self.std, self.scale)
        require(all(1 <= side <= SIDE for side in sides), f"pictures of {sides}")
        require(self.channels in (1, 3), f"pictures of {self.channels} channels")
        require(1 <= self.batch <= 1 << 16, f"batches of {self.batch}")
        require(len(self.mean) == len(self.std) == self.channels, "a mean and a std for each channel")
        require(all(map(math.isfinite, numbers)) and 0.0 not in self.std, f"mean, std and scale are {numbers}")


@dataclass(frozen=True, slots=True)
class Audio:
    """A wave float32 (batch, samples), or its log-mel spectrogram (batch, mels, frames) or (batch, frames, mels)."""

    rate: int  # samples in a second
    most: int  # samples
    least: int  # samples; shorter sounds are filled with zeros
    step: int = 1  # samples between two frames: from `least` on, what is less than one more changes next to nothing
    features: Literal["wave", "whisper", "fbank"] = "wave"
    normalize: bool = False  # wave: to mean 0 and variance 1
    mels: int = 0
    frames: int = 0
    mean: float = 0.0  # fbank: (x - mean) / (2 · std)
    std: float = 0.5

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        wave = self.features == "wave"
        require(RATES[0] <= self.rate <= RATES[1], f"{self.rate} samples in a second")
        require(1 <= self.least <= self.most <= 1 << 28, f"{self.least} to {self.most} samples")
        require(1 <= self.step <= self.most, f"{self.step} samples between two frames")
        require(wave or 1 <= self.mels <= 1024, f"{self.mels} mel bands")
        require(wave or 1 <= self.frames <= 1 << 20, f"{self.frames} frames")
        require(math.isfinite(self.mean) and math.isfinite(self.std) and self.std != 0, "mean and std")


@dataclass(frozen=True, slots=True)
class Vision:
    """How a language model sees: a picture becomes tiles of one size, and each tile rows in place of tokens."""

    size: int  # pixels of a tile's side
    rows: int  # that a tile becomes
    dim: int  # of a row
    token: int  # that stands for a row in a prompt
    longest: int  # pixels that the longer side of a picture gets
    split: bool  # a picture is cut into tiles, and seen as a whole besides
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    mark: str = "<image>"  # what stands for a picture in a text, and for each row
    around: str = "<fake_token_around_image>"
    whole: str = "<global-img>"

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        for key in ("size", "rows", "dim", "longest", "token"):
            _check_int(key, getattr(self, key), int(key != "token"), MOST)
        require(all(map(math.isfinite, (*self.mean, *self.std))), "means and deviations are no numbers")
        fits = all(self.std) and self.longest <= TILE and self.size <= TILE
        require(fits, "sizes or deviations are out of range")
        require(all((self.mark, self.around, self.whole)), "marks are no texts")

    def text(self, down: int, across: int) -> str:
        """Return what a prompt has for a picture of `down` by `across` tiles besides the whole one."""
        row, made = self.mark * self.rows, ""
        for r in range(1, down + 1):
            made += "".join(f"{self.around}<row_{r}_col_{c}>{row}" for c in range(1, across + 1)) + "\n"
        return made + ("\n" if down else "") + self.around + self.whole + row + self.around


@dataclass(frozen=True, slots=True)
class Speech:
    """How a Whisper model hears and writes: sizes, special tokens, and which tokens are never chosen."""

    rate: int  # samples in a second
    hop: int  # samples from one frame to the next
    window: int  # samples of a frame
    frames: int  # that one call hears
    mels: int
    context: int  # tokens
    vocab: int
    start: int  # the token that every text begins with
    end: int  # ids below it are text
    no_timestamps: int | None = None  # the timestamp 0.00 is the next one; None: there are no timestamps
    initial: int | None = None  # the latest timestamp that a window may begin with
    no_speech: int | None = None
    languages: dict[str, int] | None = None  # None: the model knows one only
    tasks: dict[str, int] | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise ValueError for a value out of range."""
        for key in ("rate", "hop", "window", "frames", "mels", "context", "vocab"):
            _check_int(key, getattr(self, key), 1, MOST)
        named = [*(self.languages or {}).values(), *(self.tasks or {}).values()]
        rare = [token for token in (self.no_timestamps, self.no_speech) if token is not None]
        for token in (self.start, self.end, *named, *rare, *self.suppressed, *self.suppressed_first):
            _check_int("a token", token, 0, self.vocab - 1)
        if self.initial is not None:
            _check_int("initial", self.initial, 0, self.vocab)
        fits = self.frames % 2 == 0 and self.window <= 2 * self.frames * self.hop and self.context >= 8
        require(fits, "the sizes do not fit together")

    @property
    def first_timestamp(self) -> int:
        """The id of 0.00; beyond all tokens if there is none."""
        return self.vocab if self.no_timestamps is None else self.no_timestamps + 1

    @property
    def seconds(self) -> float:
        """The length of a window."""
        return self.frames * self.hop / self.rate

    @property
    def precision(self) -> float:
        """Seconds from one timestamp to the next: two frames."""
        return 2 * self.hop / self.rate


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    require(isinstance(value, int) and not isinstance(value, bool) and low <= value <= high, f"{name} is {value!r}")
