"""Sound from WAV files: any rate, any number of channels, integers of 8 to 32 bits or floats."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ..errors import InvalidInput
from ..files import read

LARGEST = 1 << 32  # bytes of a file
RATES = (1000, 1_000_000)  # samples per second: least and most
CHANNELS = 64
EXTENDED = 0xFFFE  # the code of the format follows later
ZEROS, ROLLOFF, BETA = 32, 0.95, 10.0  # of the filter: zero crossings per side, relative cutoff, steepness
AT_ONCE, PHASES = 1 << 14, 256  # samples of the result per product, and filters per batch


def read_wave(path: str | os.PathLike[str], limit: float = math.inf) -> tuple[np.ndarray, int, float]:
    """Return float32 (samples,) from -1 to 1, the rate, and the length of the whole file in seconds.

    Samples are the mean of all channels, for at most `limit` seconds.
    """
    name = os.fspath(path)
    data = memoryview(read(path, InvalidInput, LARGEST))
    if len(data) < 12 or bytes(data[:4]) != b"RIFF" or bytes(data[8:12]) != b"WAVE":
        _fail(name, "it does not begin with RIFF and WAVE")
    form: tuple[int, ...] | None = None
    position = 12
    while position + 8 <= len(data):
        kind, nbytes = struct.unpack_from("<4sI", data, position)
        body = data[position + 8 : position + 8 + nbytes]
        position += 8 + nbytes + nbytes % 2
        if kind == b"fmt ":
            if len(body) < 16:
                _fail(name, "its format is truncated")
            form = struct.unpack_from("<HHIIHH", body)
            if form[0] == EXTENDED and len(body) >= 26:
                form = (struct.unpack_from("<H", body, 24)[0], *form[1:])
        elif kind == b"data":
            if form is None:
                _fail(name, "its samples come before their format")
            return _samples(name, body, form, limit)
    _fail(name, "it has no samples")


def _samples(name: str, body: memoryview, form: tuple[int, ...], limit: float) -> tuple[np.ndarray, int, float]:
    kind, channels, rate, _, _, bits = form
    if not 1 <= channels <= CHANNELS or not RATES[0] <= rate <= RATES[1]:
        _fail(name, f"it has {channels} channels of {rate} samples per second")
    width = bits // 8
    count = len(body) // (width * channels or 1)
    if not count:
        _fail(name, "it has no samples")
    body = body[: int(min(count, math.ceil(min(limit, count) * rate))) * width * channels]
    match kind, bits:  # 1: integers, 3: floats
        case (1, 8):
            samples = np.frombuffer(body, np.uint8).astype(np.float32) / 128 - 1
        case (1, 16):
            samples = np.frombuffer(body, "<i2").astype(np.float32) / 2**15
        case (1, 24):
            wide = np.zeros((len(body) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
            samples = wide.view("<i4")[:, 0].astype(np.float32) / 2**31
        case (1, 32):
            samples = np.frombuffer(body, "<i4").astype(np.float32) / 2**31
        case (3, 32 | 64):
            samples = np.frombuffer(body, f"<f{width}").astype(np.float32)
        case _:
            _fail(name, f"samples of kind {kind} with {bits} bits are not supported")
    if not np.isfinite(samples).all():
        raise InvalidInput(f"{name}: samples are not finite numbers")
    return samples.reshape(-1, channels).mean(axis=1, dtype=np.float32), rate, count / rate


def _fail(name: str, reason: str) -> NoReturn:
    new = Path(name).with_suffix(".wav").name
    raise InvalidInput(f"{name} is not a .wav file of plain samples: {reason}; try ffmpeg -i {name} new-{new}")


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """Return samples at another rate, filtered by a Kaiser-windowed sinc that removes aliased frequencies."""
    if rate == new_rate:
        return samples
    common = math.gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    scale = min(1.0, up / down) * ROLLOFF
    half = math.ceil(ZEROS / scale)  # input samples on each side of a result
    count = -(-len(samples) * up // down)
    result = np.empty(count, np.float32)
    padded = np.pad(samples, (half, half + down))
    windows = sliding_window_view(padded, 2 * half + 1)
    for start in range(0, min(up, count), PHASES):
        phases = np.arange(start, min(start + PHASES, up, count))
        firsts, rests = np.divmod(phases * down, up)
        times = np.arange(-half, half + 1) - rests[:, None] / up
        kaiser = np.i0(BETA * np.sqrt(np.maximum(1 - (times / (half + 1)) ** 2, 0))) / np.i0(BETA)
        filters = (scale * np.sinc(scale * times) * kaiser).astype(np.float32)
        for phase, first, taps in zip(phases, firsts, filters):
            target = result[phase::up]
            inputs = windows[first::down][: len(target)]
            for k in range(0, len(target), AT_ONCE):
                target[k : k + AT_ONCE] = inputs[k : k + AT_ONCE] @ taps
    return result
