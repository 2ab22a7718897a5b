"""What a folder says about tokens, pixels and samples, as a card that needs no transformers to be used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ExportError
from ..files import read_object
from ..models.card import Card
from ..models.kinds import TASK
from ..models.media import pixels, sound
from ..models.parts import RATES, RESAMPLES, SIDE, Audio, Image, Text
from ..models.tasks.specs import TASKS, TaskSpec
from .backend import quiet
from .causes import root_cause
from .hf_models import Bounds, has_types, least_samples, positions
from .origin import origin_of

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
CLOSE = 0.02  # how far pixels may be from those of the folder's own processor, before a note says so
WARPED = 384  # from this size on, ConvNeXt's pictures are not cropped


@dataclass(slots=True)
class Processing:
    card: Card
    size: tuple[int, int] | None = None  # of a picture
    tokenizer: dict[str, bytes] = field(default_factory=dict)  # files to write beside the program, by their ending
    notes: list[str] = field(default_factory=list)


def read_processing(folder: Path, inner: Path, model: Any, task: str, bounds: Bounds) -> Processing:
    """Return the card of a model in a folder; `inner` is where its `config.json` is."""
    config, spec = model.config, TASKS[task]
    made = Processing(Card(TASK, task=task))
    found: dict[str, Any] = origin_of(folder)
    if "text" in spec.inputs:
        found["text"] = _text(folder, inner, model, spec, bounds, made)
        found["tokenizer"] = next(iter(made.tokenizer), None)
    if "image" in spec.inputs:
        found["image"] = image = _image(inner, model, spec, bounds, made)
        made.size = image.height, image.width
    if "audio" in spec.inputs:
        found["audio"] = _audio(inner, model, bounds, made)
    if spec.named:
        found["labels"] = labels_of(config)
        problem = getattr(config, "problem_type", None)
        alone = spec.drawn == "labels" and "audio" not in spec.inputs and len(found["labels"]) == 1
        found["regression"] = problem == "regression"
        found["many"] = not found["regression"] and (alone or problem == "multi_label_classification")
    if len(spec.inputs) > 1:
        found["many"] = config.model_type.startswith("siglip")
    if spec.drawn == "text":
        found |= {"labels": _letters(inner), "blank": config.pad_token_id or 0}
    made.card = Card.of_task(task, type(model).__name__, **found)
    return made


def labels_of(config: Any) -> tuple[str, ...]:
    """The names of the classes in their order."""
    given = getattr(config, "id2label", None) or {}
    return tuple(str(given.get(k, f"class {k}")) for k in range(len(given)))


def _text(folder: Path, inner: Path, model: Any, spec: TaskSpec, bounds: Bounds, made: Processing) -> Text:
    length = min(bounds.length, positions(model))
    file = folder / "sentence_bert_config.json"
    if file.is_file():
        most = read_object(file, ExportError).get("max_seq_length")
        length = min(length, most) if isinstance(most, int) and most > 1 else length
    pad, mask = getattr(model.config, "pad_token_id", None), None
    tokenizer = _tokenizer(next((p for p in (inner, folder) if _has_vocabulary(p)), None), made)
    if tokenizer is not None:
        length = min(length, tokenizer.model_max_length)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else pad
        mask = tokenizer.mask_token_id
    if length < 2:
        raise ExportError(f"{folder}: texts of {length} tokens are too short")
    return Text(
        length,
        1 if spec.masked else bounds.batch,
        types=spec.types and has_types(model),
        pad=pad or 0,
        mask=mask if spec.masked else None,
        masked=not model.config.model_type.startswith("siglip"),
        fixed=len(spec.inputs) > 1,
    )


def _has_vocabulary(folder: Path) -> bool:
    return any((folder / name).is_file() for name in VOCABULARIES)


def _tokenizer(folder: Path | None, made: Processing) -> Any:
    """The tokenizer as transformers opens it, which may be another than its files alone say; None without one."""
    if folder is None:
        made.notes.append("there is no tokenizer: the program can be run, but not be given text")
        return None
    from transformers import AutoTokenizer

    try:
        with quiet():
            found = AutoTokenizer.from_pretrained(folder, **LOCAL)
            made.tokenizer = {".tokenizer.json": found.backend_tokenizer.to_str().encode()}
    except Exception as e:
        made.notes.append(f"the tokenizer cannot be used: {root_cause(e)}")
        return None
    return found


def _image(inner: Path, model: Any, spec: TaskSpec, bounds: Bounds, made: Processing) -> Image:
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "num_channels", 3)
    batch = 1 if len(spec.inputs) > 1 else bounds.batch
    processor = _processor(inner, "AutoImageProcessor")
    if processor is None:
        made.notes.append("there is no preprocessor_config.json: pixels are from -1 to 1, of the size in config.json")
        height, width = _pair(getattr(config, "image_size", None) or 224)
        half = (0.5,) * channels
        return Image(height, width, channels, batch, half, half, resize=(height, width))
    image = image_facts(processor, channels, batch, whole=spec.draws)
    difference = _picture_difference(processor, image)
    if difference is None or difference > CLOSE:
        name = type(processor).__name__.removesuffix("Pil")
        made.notes.append(f"pictures are not made quite as {name} makes them: they have one size here")
    return image


def image_facts(processor: Any, channels: int, batch: int, whole: bool = False) -> Image:
    """What an image processor of transformers does to a picture; with `whole`, nothing of it is cut off."""
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
    if resize is None and (whole or (not crops and pct is None)):  # pictures of one size: not in proportion
        resize = height, width
    factor = getattr(processor, "rescale_factor", None) or 1 / 255
    scaled = getattr(processor, "do_rescale", True)
    normal = getattr(processor, "do_normalize", True)
    mean, std = getattr(processor, "image_mean", None) or 0.0, getattr(processor, "image_std", None) or 1.0
    resample = getattr(processor, "resample", None)
    found = Image(
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
    if not all(1 <= side <= SIDE for side in (height, width, found.shortest or 1, *(resize or ()))):
        raise ExportError(f"pictures of {height} × {width} pixels are not possible")
    return found


def _sides(processor: Any, name: str) -> dict[str, int]:
    given = getattr(processor, name, None)
    if given is None:
        return {}
    if isinstance(given, int):
        return {"height": given, "width": given}
    return {k: int(v) for k, v in dict(given).items() if v is not None}


def _pair(size: Any) -> tuple[int, int]:
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))


def _each(value: Any, channels: int) -> tuple[float, ...]:
    given = [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)]
    return tuple(given * channels if len(given) == 1 else given[:channels])


def _picture_difference(processor: Any, image: Image) -> float | None:
    """How far our pixels of a picture are from the processor's own; None where that makes another shape."""
    rng = np.random.default_rng(0)
    sample = rng.integers(0, 256, (9, 12, 3), np.uint8).repeat(40, 0).repeat(40, 1)
    try:
        with quiet():
            expected = np.asarray(processor(images=sample, return_tensors="np")["pixel_values"][0])
    except Exception:
        return None
    found = pixels(sample, image)
    return float(np.abs(found - expected).max()) if found.shape == expected.shape else None


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


def _audio(inner: Path, model: Any, bounds: Bounds, made: Processing) -> Audio:
    extractor = _processor(inner, "AutoFeatureExtractor")
    rate = int(getattr(extractor, "sampling_rate", 16_000))
    if not RATES[0] <= rate <= RATES[1]:
        raise ExportError(f"{inner}: {rate} samples in a second are not possible")
    config = model.config
    if extractor is None:
        made.notes.append("there is no preprocessor_config.json: sounds have 16,000 samples in a second")
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
        raise ExportError(f"{inner}: {type(model).__name__} takes no wave and no spectrogram that is known here")
    _compare_sounds(extractor, audio, made)
    return audio


def _compare_sounds(extractor: Any, audio: Audio, made: Processing) -> None:
    """A note where a sound is not what the folder's own extractor makes of it."""
    if extractor is None:
        return
    count = min(audio.most, max(audio.least, audio.rate))
    noise = np.random.default_rng(0).standard_normal(count).astype(np.float32) * 0.1
    found, _ = sound(noise, audio)
    try:
        with quiet():
            expected = np.asarray(
                next(iter(extractor(noise, sampling_rate=audio.rate, return_tensors="np").values()))[0]
            )
    except Exception:
        expected = None
    if expected is None or expected.shape != found.shape or np.abs(found - expected).max() > CLOSE:
        made.notes.append(f"sounds are not made as {type(extractor).__name__} makes them")


def _letters(inner: Path) -> tuple[str, ...]:
    """The tokens of speech in their order."""
    file = inner / "vocab.json"
    if not file.is_file():
        return ()
    given = read_object(file, ExportError)
    by_id = {v: k for k, v in given.items() if isinstance(v, int) and 0 <= v < 1 << 20}
    return tuple(by_id.get(k, "") for k in range(max(by_id, default=-1) + 1))
