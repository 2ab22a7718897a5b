"""What a program says about its task: how its inputs are made, and what its outputs mean.

It is JSON, the output of the method `ptegpu_facts`. A file may be a stranger's: every field is proved when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..errors import InvalidProgram
from ..format import Program
from ..plan.fields import read_value

METHOD, VERSION = "ptegpu_facts", 1
LARGEST = 1 << 24  # characters of the JSON
SIDE, RATES = 1 << 14, (1000, 192_000)  # pixels of a picture's side; samples in a second

Task = Literal[
    "feature-extraction",
    "sentence-embedding",
    "text-classification",
    "token-classification",
    "question-answering",
    "fill-mask",
    "image-feature-extraction",
    "image-classification",
    "image-segmentation",
    "depth-estimation",
    "audio-feature-extraction",
    "audio-classification",
    "speech-recognition",
    "zero-shot-image-classification",
]
TASKS: tuple[Task, ...] = get_args(Task)
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
RESAMPLES: tuple[Resample, ...] = get_args(Resample)  # in Pillow's order


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


@dataclass(frozen=True, slots=True)
class Facts:
    task: Task
    architecture: str  # the class that was exported
    version: int = VERSION
    text: Text | None = None
    image: Image | None = None
    audio: Audio | None = None
    labels: tuple[str, ...] = ()
    many: bool = False  # labels do not exclude each other
    regression: bool = False  # scores are the outputs themselves, not probabilities
    blank: int = 0  # speech-recognition: the token between two equal ones

    @property
    def takes(self) -> tuple[str, ...]:
        """What it is asked with: text, image or audio."""
        return tuple(name for name in ("image", "audio", "text") if getattr(self, name) is not None)

    def json(self) -> str:
        return json.dumps(_plain(asdict(self)), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def read_facts(program: Program) -> Facts | None:
    """What a program says about its task; None if it says nothing, InvalidProgram if that makes no sense."""
    method = next((m for m in program.methods if m.name == METHOD), None)
    if method is None:
        return None
    values = [method.values[k] for k in method.outputs]
    if len(values) != 1 or not isinstance(values[0], str) or len(values[0]) > LARGEST:
        raise InvalidProgram(f"{METHOD} does not give one text", path=program.path)
    try:
        told = json.loads(values[0])
    except (ValueError, RecursionError):
        raise InvalidProgram(f"what {METHOD} gives is no JSON", path=program.path) from None
    try:
        facts: Facts = read_value(Facts, told)
    except ValueError as e:
        raise InvalidProgram(f"{METHOD}{e}", path=program.path) from None
    if problem := _problem(facts, {m.name for m in program.methods}):
        raise InvalidProgram(f"{METHOD}: {problem}", path=program.path)
    return facts


def _problem(facts: Facts, methods: set[str]) -> str:
    """What of the facts cannot be."""
    text, image, audio = facts.text, facts.image, facts.audio
    wanted = inputs_of(facts.task)
    checks = [
        (facts.version != VERSION, f"version {facts.version}; this ptegpu knows version {VERSION}"),
        (set(facts.takes) != set(wanted), f"{facts.task} takes {' and '.join(wanted)}"),
        ("forward" not in methods, "there is no method 'forward'"),
    ]
    if text is not None:
        checks += [
            (not 1 <= text.length <= 1 << 20, f"texts of {text.length} tokens"),
            (not 1 <= text.batch <= 1 << 16, f"batches of {text.batch}"),
            (not 0 <= text.pad < 1 << 31, f"the padding is token {text.pad}"),
        ]
    if image is not None:
        sides = (image.height, image.width, image.shortest or 1, *(image.resize or ()))
        numbers = (*image.mean, *image.std, image.scale)
        checks += [
            (not all(1 <= side <= SIDE for side in sides), f"pictures of {sides}"),
            (image.channels not in (1, 3), f"pictures of {image.channels} channels"),
            (not 1 <= image.batch <= 1 << 16, f"batches of {image.batch}"),
            (
                len(image.mean) != image.channels or len(image.std) != image.channels,
                "a mean and a std for each channel",
            ),
            (not all(map(math.isfinite, numbers)) or 0.0 in image.std, f"mean, std and scale are {numbers}"),
        ]
    if audio is not None:
        checks += [
            (not RATES[0] <= audio.rate <= RATES[1], f"{audio.rate} samples in a second"),
            (not 1 <= audio.least <= audio.most <= 1 << 28, f"{audio.least} to {audio.most} samples"),
            (not 1 <= audio.step <= audio.most, f"{audio.step} samples between two frames"),
            (audio.features != "wave" and not 1 <= audio.mels <= 1024, f"{audio.mels} mel bands"),
            (audio.features != "wave" and not 1 <= audio.frames <= 1 << 20, f"{audio.frames} frames"),
            (not math.isfinite(audio.mean) or not math.isfinite(audio.std) or audio.std == 0, "mean and std"),
        ]
    return next((message for wrong, message in checks if wrong), "")


def inputs_of(task: Task) -> tuple[str, ...]:
    """The kinds of input that a task takes."""
    if task == "zero-shot-image-classification":
        return "image", "text"
    if task.startswith(("image-", "depth-")):
        return ("image",)
    return ("audio",) if task.startswith(("audio-", "speech-")) else ("text",)


def points_of(facts: Facts, batches: Sequence[int] | None = None) -> list[dict[str, int]]:
    """The sizes of inputs that a compiled program is to hold for, besides the largest: `points` of `ptegpu.compile`."""
    points: list[dict[str, int]] = [{}]
    text, audio = facts.text, facts.audio
    if text is not None:
        first = len(facts.takes) - 1  # a picture comes before
        inputs = range(first, first + (3 if text.types else 2))
        lengths = [text.length] if text.fixed else range(1, text.length + 1)
        for batch in batches or range(1, text.batch + 1):
            points += [{f"input {k}[{d}]": n for k in inputs for d, n in enumerate((batch, m))} for m in lengths]
    elif audio is not None and audio.features == "wave":
        points += [{"input 0[1]": n} for n in range(audio.least, audio.most + 1, max(audio.step, audio.most // 4096))]
    elif facts.image is not None:
        points += [{"input 0[0]": batch} for batch in batches or range(1, facts.image.batch + 1)]
    return points
