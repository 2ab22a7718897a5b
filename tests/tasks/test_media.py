"""Pictures and sounds, equal to those from transformers' processors; invalid files."""

from __future__ import annotations

import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as t
from PIL import Image as pillow

from ptegpu.errors import InvalidInput
from ptegpu.export.hf_processing import image_of
from ptegpu.models.media import largest_class, open_image, pixels, read_wave, resample, resized, sound
from ptegpu.models.parts import Audio, Image

SIDE = {"height": 32, "width": 32}
PROCESSORS: dict[str, Any] = {
    "ViT": lambda: t.ViTImageProcessorPil(size=SIDE),
    "DeiT": lambda: t.DeiTImageProcessorPil(size={"height": 40, "width": 40}, crop_size=SIDE),
    "ConvNeXt, cropped": lambda: t.ConvNextImageProcessorPil(size={"shortest_edge": 64}),
    "ConvNeXt, warped": lambda: t.ConvNextImageProcessorPil(size={"shortest_edge": 384}),
    "CLIP": lambda: t.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SIDE),
    "CLIP, padded": lambda: t.CLIPImageProcessorPil(size={"shortest_edge": 25}, crop_size={"height": 30, "width": 31}),
    "SegFormer": lambda: t.SegformerImageProcessorPil(size={"height": 24, "width": 40}),
    "DPT": lambda: t.DPTImageProcessorPil(size=SIDE),
    "not resized": lambda: t.ViTImageProcessorPil(do_resize=False, do_center_crop=True, crop_size=SIDE),
    "not normalized": lambda: t.ViTImageProcessorPil(size=SIDE, do_normalize=False, resample=0),
    "not rescaled": lambda: t.ViTImageProcessorPil(size=SIDE, do_rescale=False, image_mean=[9.0] * 3),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("shape", [(90, 120), (121, 77), (50, 50)])
def test_pixels_are_those_of_transformers(name: str, shape: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    processor = PROCESSORS[name]()
    expected = processor(images=picture, return_tensors="np")["pixel_values"][0]
    result = pixels(picture, image_of(processor, 3, 1))
    assert expected.shape == result.shape and np.float32 == result.dtype
    np.testing.assert_allclose(expected, result, atol=1e-5 * max(1, np.abs(expected).max()))


def test_a_file_is_turned_and_coloured(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (20, 30), np.uint8)
    exif = pillow.Exif()
    exif[0x0112] = 6  # turned to the right
    pillow.fromarray(grey).save(tmp_path / "p.png", exif=exif)
    image = open_image(tmp_path / "p.png")
    assert ("RGB", (20, 30)) == (image.mode, image.size)
    np.testing.assert_array_equal(np.rot90(grey, -1), np.asarray(image)[:, :, 0])


def test_what_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"nothing")
    with pytest.raises(InvalidInput, match="is not a picture that Pillow can read"):
        open_image(tmp_path / "p.png")
    with pytest.raises(InvalidInput, match=r"a picture is uint8 \(height, width, 3\), not float64 \(2, 3\)"):
        open_image(np.zeros((2, 3)))
    facts = Image(9, 9, 3, 1, (0.0,) * 3, (1.0,) * 3, shortest=16_000)
    with pytest.raises(InvalidInput, match="a picture of 40,000 × 1 is too narrow"):
        pixels(np.zeros((1, 40_000, 3), np.uint8), facts)
    pillow.new("L", (300, 300)).save(tmp_path / "large.png")
    monkeypatch.setattr("ptegpu.models.media.PIXELS", 80_000)
    with pytest.raises(InvalidInput, match=r"large\.png has 300 × 300 pixels, more than 80,000"):
        open_image(tmp_path / "large.png")
    monkeypatch.undo()
    pillow.new("RGB", (12_000, 12_000)).save(tmp_path / "bomb.png")  # 0.4 MB
    with pytest.raises(InvalidInput, match=r"bomb\.png has 12,000 × 12,000 pixels, more than 67,108,864: make"):
        open_image(tmp_path / "bomb.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidInput, match=r"pictures need Pillow, .* Run: pip install 'ptegpu\[media\]'"):
        open_image(tmp_path / "p.png")


NOISE = np.random.default_rng(0).standard_normal(20_000).astype(np.float32) * 0.1


@pytest.mark.parametrize(
    ("extractor", "facts"),
    [
        (t.Wav2Vec2FeatureExtractor(), Audio(16_000, 480_000, 400, normalize=True)),
        (t.Wav2Vec2FeatureExtractor(do_normalize=False), Audio(16_000, 480_000, 400)),
        (t.WhisperFeatureExtractor(), Audio(16_000, 480_000, 1, 160, "whisper", mels=80, frames=3000)),
        (t.WhisperFeatureExtractor(feature_size=128), Audio(16_000, 480_000, 1, 160, "whisper", mels=128, frames=3000)),
        (
            t.ASTFeatureExtractor(max_length=200, num_mel_bins=64),
            Audio(16_000, 32_400, 400, 160, "fbank", False, 64, 200, -4.2677393, 4.5689974),
        ),
        (
            t.ASTFeatureExtractor(max_length=50),
            Audio(16_000, 8_400, 400, 160, "fbank", False, 128, 50, -4.2677393, 4.5689974),
        ),
    ],
)
def test_sounds_are_those_of_transformers(extractor: Any, facts: Audio) -> None:
    features = extractor(NOISE, sampling_rate=16_000, return_tensors="np")
    expected = next(iter(features.values()))[0]
    result, seconds = sound(NOISE, facts)
    assert (expected.shape, 1.25) == (result.shape, seconds)
    np.testing.assert_allclose(expected, result, atol=1e-4)


@pytest.mark.parametrize(("rate", "other"), [(44_100, 16_000), (8_000, 16_000), (48_000, 16_000), (22_050, 16_001)])
def test_a_tone_is_the_same_at_another_rate(rate: int, other: int) -> None:
    def tone(rate: int, hertz: float) -> np.ndarray:
        return np.sin(2 * np.pi * hertz * np.arange(rate) / rate).astype(np.float32)

    middle = slice(other // 10, -other // 10)
    np.testing.assert_allclose(tone(other, 440)[middle], resample(tone(rate, 440), rate, other)[middle], atol=1e-3)
    if rate > 2 * 11_000:
        assert np.abs(resample(tone(rate, 10_500), rate, other)[middle]).max() < 0.02  # too high for the new rate


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width(tmp_path: Path, width: int) -> None:
    x = np.array([[0.5, -0.5], [0.25, 0.75], [-1.0, -1.0]])
    integers = np.round(x * (1 << (8 * width - 1))).astype(np.int64)
    if width == 1:
        data = (integers + 128).astype(np.uint8).tobytes()
    else:
        data = b"".join(int(v).to_bytes(width, "little", signed=True) for v in integers.reshape(-1))
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setparams((2, width, 1000, 0, "NONE", ""))
        file.writeframes(data)
    samples, rate, seconds = read_wave(tmp_path / "s.wav")
    np.testing.assert_allclose(x.mean(1), samples, atol=1e-6)
    assert (1000, 0.003) == (rate, seconds)
    assert 2 == len(read_wave(tmp_path / "s.wav", 0.002)[0])


def test_what_is_no_sound(tmp_path: Path) -> None:
    for content in (b"", b"RIFF", b"RIFF\xff\xff\xff\xffWAVEfmt "):
        (tmp_path / "s.wav").write_bytes(content)
        with pytest.raises(InvalidInput, match=r"s\.wav is not a \.wav file of plain samples"):
            read_wave(tmp_path / "s.wav")
    with pytest.raises(InvalidInput, match=r"a sound is an array \(samples,\) and a rate, not \(2, 3\) at 16000"):
        sound(np.zeros((2, 3)), Audio(16_000, 100, 1))


def test_planes_are_enlarged_as_pytorch_does() -> None:
    planes = np.random.default_rng(0).standard_normal((5, 16, 12)).astype(np.float32)
    for size in ((37, 61), (7, 5), (16, 12)):
        expected = torch.nn.functional.interpolate(torch.tensor(planes)[None], size=size, mode="bilinear")[0]
        np.testing.assert_allclose(expected, resized(planes, *size), atol=1e-4)
        assert (largest_class(planes, *size) == expected.argmax(0).numpy()).mean() > 0.999
