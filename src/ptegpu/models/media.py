"""Pictures and sounds as the arrays that a model takes, as the processors of transformers make them."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..files import check_regular
from .parts import RESAMPLES, Audio, Image
from .wave import read_wave, resample

PIXELS = 1 << 26  # of a picture, at most: 256 MiB as Pillow keeps them


def open_image(source: Any, channels: int = 3) -> Any:
    """A Pillow image in colours or grey: of a file, of an array (height, width[, 3]) of uint8, or of another one."""
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError as e:
        raise InvalidInput("pictures need Pillow, which is not installed. Run: pip install 'ptegpu[media]'") from e
    mode = "RGB" if channels == 3 else "L"
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim not in (2, 3) or source.shape[2:] not in ((), (3,), (4,)):
            raise InvalidInput(f"a picture is uint8 (height, width, 3), not {source.dtype} {source.shape}")
        return pillow.fromarray(source).convert(mode)
    if not isinstance(source, str | os.PathLike):
        return source.convert(mode)
    check_regular(source, InvalidInput)
    try:
        with pillow.open(source) as found:
            width, height = found.size
            if width * height > PIXELS:
                raise InvalidInput(
                    f"{source} has {width:,} × {height:,} pixels, more than {PIXELS:,}: make it smaller first"
                )
            ImageOps.exif_transpose(found, in_place=True)
            return found.convert(mode)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError, EOFError) as e:
        if isinstance(e, InvalidInput):
            raise
        raise InvalidInput(f"{source} is no picture that Pillow can read: {e}") from None


def pixels(source: Any, facts: Image) -> np.ndarray:
    """float32 (channels, height, width)."""
    image = open_image(source, facts.channels)
    resample = RESAMPLES.index(facts.resample)
    if facts.resize is not None:
        image = image.resize(facts.resize[::-1], resample)
    elif facts.shortest is not None:
        image = image.resize(_shortest(image.size, facts.shortest), resample)
    made = np.asarray(image)
    made = _crop(made[None] if made.ndim == 2 else np.moveaxis(made, -1, 0), facts.height, facts.width)
    shape = (-1, 1, 1)
    mean, std = (np.array(x, np.float32).reshape(shape) for x in (facts.mean, facts.std))
    return (made.astype(np.float32) * np.float32(facts.scale) - mean) / std


def _shortest(size: tuple[int, int], shortest: int) -> tuple[int, int]:
    """Width and height in the same proportion."""
    width, height = size
    longest = int(shortest * max(size) / min(size))
    if shortest * longest > PIXELS:
        raise InvalidInput(f"a picture of {width:,} × {height:,} is too narrow")
    return (shortest, longest) if width <= height else (longest, shortest)


def _crop(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of a picture (channels, height, width), with black around it where it is too small."""
    for axis, wanted in ((1, height), (2, width)):
        extra = wanted - x.shape[axis]
        if extra > 0:
            around = [(0, 0)] * 3
            around[axis] = extra - extra // 2, extra // 2
            x = np.pad(x, around)
        elif extra < 0:
            first = -extra // 2
            x = np.take(x, range(first, first + wanted), axis)
    return x


def sound(source: Any, facts: Audio, rate: int | None = None) -> tuple[np.ndarray, float]:
    """What the model takes of a sound, without a batch: a wave (samples,) or a spectrogram; how many seconds it has.

    `source` is a .wav file, or samples (samples,), at `rate` if that is not the model's. Of a long sound it is the
    beginning.
    """
    most = facts.most / facts.rate
    if isinstance(source, str | Path | os.PathLike):
        x, given, seconds = read_wave(source, most + 0.1)
    else:
        x, given = np.asarray(source, np.float32), rate or facts.rate
        if x.ndim != 1 or not x.size or given < 1:
            raise InvalidInput(f"a sound is an array (samples,) and a rate, not {x.shape} at {given}")
        seconds = len(x) / given
    x = resample(x[: math.ceil((most + 0.1) * given)], given, facts.rate)[: facts.most]
    if facts.features == "whisper":
        return log_mel(np.pad(x, (0, facts.most - len(x))), facts), seconds
    if facts.features == "fbank":
        return fbank(np.pad(x, (0, max(0, facts.least - len(x)))), facts), seconds
    if facts.normalize:
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-7)
    return np.pad(x, (0, max(0, facts.least - len(x)))).astype(np.float32), seconds


def log_mel(x: np.ndarray, facts: Audio) -> np.ndarray:
    """Whisper's spectrogram (mels, frames): windows of 400 samples, 160 apart, each in the middle of its frame."""
    window = np.hanning(401)[:-1]
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(x, 200, mode="reflect"), 400)[::160][: facts.frames]
    power = _power(frames * window, 400) @ slaney_filters(facts.mels, facts.rate)
    found = np.log10(np.maximum(power, 1e-10)).T
    return ((np.maximum(found, found.max() - 8) + 4) / 4).astype(np.float32)


def fbank(x: np.ndarray, facts: Audio) -> np.ndarray:
    """Kaldi's filter bank (frames, mels), with zeros behind its end, normalized."""
    frames = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), 400)[::160][: facts.frames]
    frames = frames - frames.mean(1, keepdims=True)
    emphasized = np.concatenate([frames[:, :1] * (1 - 0.97), frames[:, 1:] - 0.97 * frames[:, :-1]], 1)
    power = _power(emphasized * np.hanning(400), 512) @ kaldi_filters(facts.mels, facts.rate)
    found = np.zeros((facts.frames, facts.mels))
    found[: len(frames)] = np.log(np.maximum(power, 1.192092955078125e-07))
    return ((found - facts.mean) / (2 * facts.std)).astype(np.float32)


def _power(frames: np.ndarray, size: int) -> np.ndarray:
    return np.abs(np.fft.rfft(frames, size)) ** 2


@cache
def slaney_filters(mels: int, rate: int, frequencies: int = 201) -> np.ndarray:
    """(frequencies, mels): triangles of equal area between frequencies that sound equally far apart."""

    def hertz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * math.log(6.4) / 27))

    top = rate / 2
    highest = 15 + 27 * math.log(top / 1000) / math.log(6.4) if top >= 1000 else 3 * top / 200
    edges = hertz(np.linspace(0, highest, mels + 2))
    return _triangles(np.linspace(0, top, frequencies), edges) * (2 / (edges[2:] - edges[:-2]))


@cache
def kaldi_filters(mels: int, rate: int) -> np.ndarray:
    """(257 frequencies, mels): triangles in Kaldi's scale, from 20 Hz on."""

    def mel(hertz: Any) -> Any:
        return 1127 * np.log1p(np.asarray(hertz) / 700)

    return _triangles(mel(np.arange(257) * (rate / 512)), np.linspace(mel(20), mel(rate // 2), mels + 2))


def _triangles(at: np.ndarray, edges: np.ndarray) -> np.ndarray:
    rising = (at[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - at[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def enlarged(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Planes (planes, h, w) at another size, between the nearest pixels: what PyTorch's bilinear does."""
    for axis, size in ((1, height), (2, width)):
        at = np.clip((np.arange(size) + 0.5) * (x.shape[axis] / size) - 0.5, 0, x.shape[axis] - 1)
        first = at.astype(np.int64)
        part = (at - first).astype(x.dtype).reshape((-1, 1) if axis == 1 else (-1,))
        upper = np.minimum(first + 1, x.shape[axis] - 1)
        x = np.take(x, first, axis) * (1 - part) + np.take(x, upper, axis) * part
    return x


def largest_class(logits: np.ndarray, height: int, width: int) -> np.ndarray:
    """Of logits (classes, h, w), the likeliest class at each pixel (height, width), a few rows at a time."""
    classes, h, _ = logits.shape
    wide = enlarged(logits, h, width) if logits.shape[2] != width else logits
    made = np.empty((height, width), np.int32)
    rows = max(1, (1 << 24) // (classes * width))
    at = np.clip((np.arange(height) + 0.5) * (h / height) - 0.5, 0, h - 1)
    for k in range(0, height, rows):
        some = at[k : k + rows]
        first = some.astype(np.int64)
        part = (some - first).astype(logits.dtype)[:, None]
        upper = np.minimum(first + 1, h - 1)
        made[k : k + rows] = (wide[:, first] * (1 - part) + wide[:, upper] * part).argmax(0)
    return made
