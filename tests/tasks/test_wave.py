"""WAV files of every kind, and rates."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ptegpu.errors import InvalidInput
from ptegpu.models.wave import read_wave, resample

WAVE = np.sin(np.arange(400) / 7) * 0.9


def wav(path: Path, kind: int, bits: int, samples: np.ndarray, rate: int = 16000, extended: bool = False) -> Path:
    """Write a WAV file with samples (n, channels) from -1 to 1, and return its path."""
    channels = samples.shape[1]
    match kind, bits:
        case (1, 8):
            data = (samples * 127 + 128).round().astype(np.uint8).tobytes()
        case (1, 24):
            data = (samples * (2**23 - 1)).astype("<i4").reshape(-1, 1).view(np.uint8)[:, :3].tobytes()
        case (1, _):
            data = (samples * (2 ** (bits - 1) - 1)).astype(f"<i{bits // 8}").tobytes()
        case _:
            data = samples.astype(f"<f{bits // 8}").tobytes()
    form = struct.pack("<HHIIHH", 0xFFFE if extended else kind, channels, rate, 0, channels * bits // 8, bits)
    if extended:
        form += struct.pack("<HHIH14x", 22, bits, 0, kind)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"LIST" + struct.pack("<I", 3) + b"odd\0"
    body = b"WAVE" + chunks + b"data" + struct.pack("<I", len(data)) + data
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


@pytest.mark.parametrize(("kind", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
@pytest.mark.parametrize("extended", [False, True])
def test_kinds(tmp_path: Path, kind: int, bits: int, extended: bool) -> None:
    stereo = np.stack([WAVE, WAVE * 0.5], axis=1)
    samples, rate, seconds = read_wave(wav(tmp_path / "a.wav", kind, bits, stereo, 44100, extended))
    assert (44100, 400 / 44100, (400,), np.float32) == (rate, seconds, samples.shape, samples.dtype)
    assert np.abs(samples - WAVE * 0.75).max() < (0.01 if bits == 8 else 1e-4)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 16001])
def test_rates(tmp_path: Path, rate: int) -> None:
    t = np.arange(rate) / rate
    tone = np.sin(2 * np.pi * 440 * t)
    too_high = 0.5 * np.sin(2 * np.pi * 9000 * t) if rate > 20000 else 0
    path = wav(tmp_path / "a.wav", 3, 32, (tone + too_high)[:, None], rate)
    samples = resample(*read_wave(path)[:2], 16000)
    assert 16000 == len(samples)
    inner = slice(300, -300)
    assert np.abs(samples - np.sin(2 * np.pi * 440 * np.arange(16000) / 16000))[inner].max() < 1e-3


def test_the_beginning(tmp_path: Path) -> None:
    path = wav(tmp_path / "a.wav", 1, 16, WAVE[:, None], 1000)
    samples, _, seconds = read_wave(path, 0.1)
    assert (100, 0.4) == (len(samples), seconds)
    np.testing.assert_array_equal(read_wave(path)[0][:100], samples)


def test_nothing_to_resample() -> None:
    assert 0 == len(resample(np.zeros(0, np.float32), 44100, 16000))


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    good = wav(path, 1, 16, WAVE[:, None]).read_bytes()
    for data, reason in (
        (b"", "it does not begin with RIFF and WAVE"),
        (b"OggS" + bytes(100), "it does not begin with RIFF and WAVE"),
        (good[:12], "it has no samples"),
        (good[:12] + good[36:], "its samples come before their format"),
        (good.replace(b"fmt \x10", b"fmt \x04"), "its format is truncated"),
        (good[:20] + b"\x55" + good[21:], "samples of kind 85 with 16 bits are not supported"),
        (good[:22] + b"\0" + good[23:], "it has 0 channels"),
        (good[:24] + b"\1\0\0\0" + good[28:], "it has 1 channels of 1 samples per second"),
        (good[:34] + b"\0" + good[35:], "samples of kind 1 with 0 bits"),
    ):
        path.write_bytes(data)
        with pytest.raises(InvalidInput) as refusal:
            read_wave(path)
        assert f"is not a .wav file of plain samples: {reason}" in str(refusal.value)
        assert "\n" not in str(refusal.value)
    with pytest.raises(InvalidInput, match="is a folder"):
        read_wave(tmp_path)
    wav(path, 3, 32, np.full((4, 1), np.nan))
    with pytest.raises(InvalidInput, match="samples are not finite numbers"):
        read_wave(path)


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_file_that_is_cut(tmp_path: Path, length: int) -> None:
    path = wav(tmp_path / "a.wav", 1, 16, WAVE[:, None])
    path.write_bytes(path.read_bytes()[:length])
    try:
        samples, *_ = read_wave(path)
    except InvalidInput:
        return
    assert len(samples) <= len(WAVE)
