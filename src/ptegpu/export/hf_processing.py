"""Preprocessing of a folder (tokens, pixels, samples) as a card, which programs use without transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ExportError
from ..models.card import Card
from ..models.kinds import TASK
from ..models.media import pixels, sound
from ..models.parts import RATES, RESAMPLES, SIDE, Audio, Image, Text
from ..models.tasks.specs import TASKS, TaskSpec
from .backend import quiet
from .checkpoint_files import read_origin
from .config_keys import read_optional
from .hf_models import Bounds, has_types, least_samples, positions
from .torch_errors import root_cause

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
CLOSE = 0.02  # tolerated difference from the pixels or samples of the folder's own processor
WARPED = 384  # the size from which ConvNeXt's pictures are not cropped


@dataclass(slots=True)
class Processing:
    """The card of a model, and the files and notes that come with it."""

    card: Card
    size: tuple[int, int] | None = None  # of a picture
    tokenizer: dict[str, bytes] = field(default_factory=dict)  # files to write beside the program, by ending
    notes: list[str] = field(default_factory=list)


def read_processing(folder: Path, inner: Path, model: Any, task: str, bounds: Bounds) -> Processing:
    """Return the card of a model in a folder; `inner` is where its `config.json` is."""
    config, spec = model.config, TASKS[task]
    processing = Processing(Card(TASK, task=task))
    fields: dict[str, Any] = read_origin(folder)
    if "text" in spec.inputs:
        fields["text"] = _text(folder, inner, model, spec, bounds, processing)
        fields["tokenizer"] = next(iter(processing.tokenizer), None)
    if "image" in spec.inputs:
        fields["image"] = image = _image(inner, model, spec, bounds, processing)
        processing.size = image.height, image.width
    if "audio" in spec.inputs:
        fields["audio"] = _audio(inner, model, bounds, processing)
    if spec.named:
        fields["labels"] = labels_of(config)
        problem = getattr(config, "problem_type", None)
        single = spec.drawn == "labels" and "audio" not in spec.inputs and len(fields["labels"]) == 1
        fields["regression"] = problem == "regression"
        fields["many"] = not fields["regression"] and (single or problem == "multi_label_classification")
    if len(spec.inputs) > 1:
        fields["many"] = config.model_type.startswith("siglip")
    if spec.drawn == "text":
        fields |= {"labels": _letters(inner), "blank": config.pad_token_id or 0}
    processing.card = Card.of_task(task, type(model).__name__, **fields)
    return processing


def labels_of(config: Any) -> tuple[str, ...]:
    """Return the names of the classes in their order."""
    labels = getattr(config, "id2label", None) or {}
    return tuple(str(labels.get(k, f"class {k}")) for k in range(len(labels)))


def _text(folder: Path, inner: Path, model: Any, spec: TaskSpec, bounds: Bounds, processing: Processing) -> Text:
    length = min(bounds.length, positions(model))
    most = read_optional(folder / "sentence_bert_config.json").get("max_seq_length")
    length = min(length, most) if isinstance(most, int) and most > 1 else length
    pad, mask = getattr(model.config, "pad_token_id", None), None
    places = (p for p in (inner, folder) if any((p / name).is_file() for name in VOCABULARIES))
    tokenizer = _tokenizer(next(places, None), processing)
    if tokenizer is not None:
        length = min(length, tokenizer.model_max_length)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else pad
        mask = tokenizer.mask_token_id
    if length < 2:
        raise ExportError(f"{folder}: invalid length of texts {length}: expected at least 2 tokens")
    return Text(
        length,
        1 if spec.masked else bounds.batch,
        types=spec.types and has_types(model),
        pad=pad or 0,
        mask=mask if spec.masked else None,
        masked=not model.config.model_type.startswith("siglip"),
        fixed=len(spec.inputs) > 1,
    )


def _tokenizer(folder: Path | None, processing: Processing) -> Any:
    """Return the tokenizer as transformers opens it, which may differ from its files; None without one."""
    if folder is None:
        processing.notes.append("there is no tokenizer: the program takes tokens, not text")
        return None
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
            processing.tokenizer = {".tokenizer.json": tokenizer.backend_tokenizer.to_str().encode()}
    except Exception as e:
        processing.notes.append(f"the tokenizer cannot be used: {root_cause(e)}")
        return None
    return tokenizer


def _image(inner: Path, model: Any, spec: TaskSpec, bounds: Bounds, processing: Processing) -> Image:
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "num_channels", 3)
    batch = 1 if len(spec.inputs) > 1 else bounds.batch
    processor = _processor(inner, "AutoImageProcessor")
    if processor is None:
        processing.notes.append(
            "there is no preprocessor_config.json: pixels are from -1 to 1, and config.json has the size"
        )
        height, width = _pair(getattr(config, "image_size", None) or 224)
        half = (0.5,) * channels
        return Image(height, width, channels, batch, half, half, resize=(height, width))
    image = image_of(processor, channels, batch, uncropped=spec.draws)
    picture = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8).repeat(40, 0).repeat(40, 1)
    if _differs(pixels(picture, image), processor, picture):
        name = type(processor).__name__.removesuffix("Pil")
        processing.notes.append(f"pictures differ from those of {name}: they have a single size here")
    return image


def _differs(ours: np.ndarray, processor: Any, sample: np.ndarray, **options: Any) -> bool:
    """Return whether pixels or features of a sound differ from those of the folder's own processor."""
    try:
        with quiet():
            expected = np.asarray(next(iter(processor(sample, return_tensors="np", **options).values()))[0])
    except Exception:
        return True
    return expected.shape != ours.shape or float(np.abs(ours - expected).max()) > CLOSE


def image_of(processor: Any, channels: int, batch: int, uncropped: bool = False) -> Image:
    """Return what an image processor of transformers does to a picture; `uncropped` keeps all of the picture."""
    size, crop = _sides(processor, "size"), _sides(processor, "crop_size")
    shortest = size.get("shortest_edge")
    resize = (size["height"], size["width"]) if "height" in size and "width" in size else None
    crops = bool(getattr(processor, "do_center_crop", False)) and "height" in crop
    pct = getattr(processor, "crop_pct", None)
    if not getattr(processor, "do_resize", True):
        shortest = resize = None
    height, width = (crop["height"], crop["width"]) if crops else resize or _pair(shortest or 224)
    if pct is not None and shortest is not None and not crops:  # ConvNeXt
        shortest, resize = (int(shortest / pct), None) if shortest < WARPED else (None, (shortest, shortest))
    if resize is None and (uncropped or (not crops and pct is None)):  # one size, in place of one proportion
        resize = height, width
    factor = getattr(processor, "rescale_factor", None) or 1 / 255
    scaled = getattr(processor, "do_rescale", True)
    normal = getattr(processor, "do_normalize", True)
    mean, std = getattr(processor, "image_mean", None) or 0.0, getattr(processor, "image_std", None) or 1.0
    resample = getattr(processor, "resample", None)
    image = Image(
        height,
        width,
        channels,
        batch,
        _each(mean if normal else 0.0, channels),
        _each(std if normal else 1.0, channels),
        float(factor) if scaled else 1.0,
        RESAMPLES[int(resample)] if resample is not None else "bilinear",
        shortest if resize is None else None,
        resize,
    )
    if not all(1 <= side <= SIDE for side in (height, width, image.shortest or 1, *(resize or ()))):
        raise ExportError(f"invalid size of pictures {height} × {width}: expected sides from 1 to {SIDE:,} pixels")
    return image


def _sides(processor: Any, name: str) -> dict[str, int]:
    size = getattr(processor, name, None)
    if isinstance(size, int):
        return {"height": size, "width": size}
    return {k: int(v) for k, v in dict(size or {}).items() if v is not None}


def _pair(size: Any) -> tuple[int, int]:
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))


def _each(value: Any, channels: int) -> tuple[float, ...]:
    values = [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)]
    return tuple(values * channels if len(values) == 1 else values[:channels])


def _processor(inner: Path, name: str) -> Any:
    if not any((inner / file).is_file() for file in ("preprocessor_config.json", "processor_config.json")):
        return None
    import transformers

    more = {"backend": "pil"} if name == "AutoImageProcessor" else {}
    try:
        with quiet():
            return getattr(transformers, name).from_pretrained(inner, **more, **LOCAL)
    except Exception as e:
        raise ExportError(f"{inner}: the preprocessing cannot be read: {root_cause(e)}") from e


def _audio(inner: Path, model: Any, bounds: Bounds, processing: Processing) -> Audio:
    extractor = _processor(inner, "AutoFeatureExtractor")
    rate = int(getattr(extractor, "sampling_rate", 16_000))
    if not RATES[0] <= rate <= RATES[1]:
        raise ExportError(f"{inner}: invalid sampling_rate {rate}: expected {RATES[0]:,} to {RATES[1]:,} per second")
    config = model.config
    if extractor is None:
        processing.notes.append("there is no preprocessor_config.json: sounds have 16,000 samples per second")
    if model.main_input_name == "input_features":
        frames = 2 * config.max_source_positions
        audio = Audio(rate, frames * 160, 1, 160, "whisper", mels=config.num_mel_bins, frames=frames)
    elif hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        frames = config.max_length
        mean, std = getattr(extractor, "mean", 0.0), getattr(extractor, "std", 0.5)
        audio = Audio(rate, 400 + frames * 160, 400, 160, "fbank", False, config.num_mel_bins, frames, mean, std)
    elif hasattr(config, "conv_kernel"):
        normalize = bool(getattr(extractor, "do_normalize", True))
        audio = Audio(
            rate, int(bounds.seconds * rate), least_samples(model), math.prod(config.conv_stride), normalize=normalize
        )
    else:
        raise ExportError(f"{inner}: the audio inputs of {type(model).__name__} are not supported")
    if extractor is not None:
        count = min(audio.most, max(audio.least, audio.rate))
        noise = np.random.default_rng(0).standard_normal(count).astype(np.float32) * 0.1
        if _differs(sound(noise, audio)[0], extractor, noise, sampling_rate=audio.rate):
            processing.notes.append(f"the features of sounds differ from those of {type(extractor).__name__}")
    return audio


def _letters(inner: Path) -> tuple[str, ...]:
    """Return the tokens of speech in their order."""
    tokens = read_optional(inner / "vocab.json")
    by_id = {v: k for k, v in tokens.items() if isinstance(v, int) and 0 <= v < 1 << 20}
    return tuple(by_id.get(k, "") for k in range(max(by_id, default=-1) + 1))
