"""Pictures and sounds as inputs of a model, equal to those from the processors of transformers."""

from __future__ import annotations

import math
import os
from functools import cache
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..files import check_regular
from .parts import RESAMPLES, Audio, Image
from .wave import read_wave, resample

PIXELS = 1 << 26  # of a picture, at most: 256 MiB in Pillow


def open_image(source: Any, channels: int = 3) -> Any:
    """Return a Pillow image, in colour or grey, of a file, an array (height, width[, 3]) of uint8 or a Pillow image."""
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
        with pillow.open(source) as image:
            width, height = image.size
            if width * height > PIXELS:
                raise InvalidInput(
                    f"{source} has {width:,} × {height:,} pixels, more than {PIXELS:,}: make it smaller first"
                )
            ImageOps.exif_transpose(image, in_place=True)
            return image.convert(mode)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError, EOFError) as e:
        if isinstance(e, InvalidInput):
            raise
        raise InvalidInput(f"{source} is not a picture that Pillow can read: {e}") from None


def pixels(source: Any, facts: Image) -> np.ndarray:
    """Return the pixels of a picture, float32 (channels, height, width)."""
    image = open_image(source, facts.channels)
    resample = RESAMPLES.index(facts.resample)
    if facts.resize is not None:
        image = image.resize(facts.resize[::-1], resample)
    elif facts.shortest is not None:
        width, height = image.size
        longest = int(facts.shortest * max(image.size) / min(image.size))
        if facts.shortest * longest > PIXELS:
            raise InvalidInput(f"a picture of {width:,} × {height:,} is too narrow")
        image = image.resize((facts.shortest, longest) if width <= height else (longest, facts.shortest), resample)
    values = np.asarray(image)  # (height, width[, channels])
    values = _crop(values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0), facts.height, facts.width)
    mean, std = (np.array(x, np.float32).reshape(-1, 1, 1) for x in (facts.mean, facts.std))
    return (values.astype(np.float32) * np.float32(facts.scale) - mean) / std


def _crop(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the middle of a picture (channels, height, width), with black padding where the picture is too small."""
    for axis, size in ((1, height), (2, width)):
        extra = size - x.shape[axis]
        if extra > 0:
            padding = [(0, 0)] * 3
            padding[axis] = extra - extra // 2, extra // 2
            x = np.pad(x, padding)
        elif extra < 0:
            first = -extra // 2
            x = np.take(x, range(first, first + size), axis)
    return x


def sound(source: Any, facts: Audio, rate: int | None = None) -> tuple[np.ndarray, float]:
    """Return the model's input for a sound, a wave (samples,) or a spectrogram without a batch, and its seconds.

    `source` is a .wav file, or samples (samples,), at `rate` if that differs from the model's. The model gets only the
    beginning of a long sound.
    """
    limit = facts.most / facts.rate + 0.1  # seconds
    if isinstance(source, str | os.PathLike):
        x, rate, seconds = read_wave(source, limit)
    else:
        x, rate = np.asarray(source, np.float32), rate or facts.rate
        if x.ndim != 1 or not x.size or rate < 1:
            raise InvalidInput(f"a sound is an array (samples,) and a rate, not {x.shape} at {rate}")
        seconds = len(x) / rate
    x = resample(x[: math.ceil(limit * rate)], rate, facts.rate)[: facts.most]
    if facts.features == "whisper":
        return log_mel(np.pad(x, (0, facts.most - len(x))), facts), seconds
    if facts.features == "fbank":
        return fbank(np.pad(x, (0, max(0, facts.least - len(x)))), facts), seconds
    if facts.normalize:
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-7)
    return np.pad(x, (0, max(0, facts.least - len(x)))).astype(np.float32), seconds


def log_mel(x: np.ndarray, facts: Audio) -> np.ndarray:
    """Return Whisper's spectrogram (mels, frames): windows of 400 samples, 160 apart, centred on their frames."""
    window = np.hanning(401)[:-1]
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(x, 200, mode="reflect"), 400)[::160][: facts.frames]
    power = _power(frames * window, 400) @ slaney_filters(facts.mels, facts.rate)
    mel = np.log10(np.maximum(power, 1e-10)).T
    return ((np.maximum(mel, mel.max() - 8) + 4) / 4).astype(np.float32)


def fbank(x: np.ndarray, facts: Audio) -> np.ndarray:
    """Return Kaldi's filter bank (frames, mels), padded with zeros and normalized."""
    frames = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), 400)[::160][: facts.frames]
    frames = frames - frames.mean(1, keepdims=True)
    emphasized = np.concatenate([frames[:, :1] * (1 - 0.97), frames[:, 1:] - 0.97 * frames[:, :-1]], 1)
    power = _power(emphasized * np.hanning(400), 512) @ kaldi_filters(facts.mels, facts.rate)
    bank = np.zeros((facts.frames, facts.mels))
    bank[: len(frames)] = np.log(np.maximum(power, 1.192092955078125e-07))
    return ((bank - facts.mean) / (2 * facts.std)).astype(np.float32)


def _power(frames: np.ndarray, size: int) -> np.ndarray:
    return np.abs(np.fft.rfft(frames, size)) ** 2


@cache
def slaney_filters(mels: int, rate: int, frequencies: int = 201) -> np.ndarray:
    """Return filters (frequencies, mels): triangles of equal area, evenly spaced on the mel scale."""

    def hertz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * math.log(6.4) / 27))

    top = rate / 2
    highest = 15 + 27 * math.log(top / 1000) / math.log(6.4) if top >= 1000 else 3 * top / 200
    edges = hertz(np.linspace(0, highest, mels + 2))
    return _triangles(np.linspace(0, top, frequencies), edges) * (2 / (edges[2:] - edges[:-2]))


@cache
def kaldi_filters(mels: int, rate: int) -> np.ndarray:
    """Return filters (257 frequencies, mels): triangles on Kaldi's mel scale, from 20 Hz."""

    def mel(hertz: Any) -> Any:
        return 1127 * np.log1p(np.asarray(hertz) / 700)

    return _triangles(mel(np.arange(257) * (rate / 512)), np.linspace(mel(20), mel(rate // 2), mels + 2))


def _triangles(frequencies: np.ndarray, edges: np.ndarray) -> np.ndarray:
    rising = (frequencies[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def resized(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return planes (planes, h, w) at another size, interpolated as PyTorch's bilinear mode does."""
    return _interpolate(_interpolate(x, 1, height), 2, width)


def _interpolate(x: np.ndarray, axis: int, size: int, part: slice = slice(None)) -> np.ndarray:
    """Return planes with a dimension resized to `size`; only a `part` of that dimension is computed."""
    count = x.shape[axis]
    positions = np.clip((np.arange(size)[part] + 0.5) * (count / size) - 0.5, 0, count - 1)
    first = positions.astype(np.int64)
    weight = (positions - first).astype(x.dtype).reshape((-1, 1) if axis == 1 else (-1,))
    return np.take(x, first, axis) * (1 - weight) + np.take(x, np.minimum(first + 1, count - 1), axis) * weight


def largest_class(logits: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the likeliest class at each pixel (height, width) for logits (classes, h, w)."""
    logits = _interpolate(logits, 2, width)
    classes = np.empty((height, width), np.int32)
    rows = max(1, (1 << 24) // (len(logits) * width))  # at once, to bound memory
    for k in range(0, height, rows):
        classes[k : k + rows] = _interpolate(logits, 1, height, slice(k, k + rows)).argmax(0)
    return classes
