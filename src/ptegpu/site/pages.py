"""The pages that show a program, and their settings in `site.json`.

"chat" is for language models, "image" for image classifiers, "task" for programs of `ptegpu export hf`, "any" for all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..dtypes import DType
from ..errors import InvalidInput, UnsupportedProgram
from ..files import check_inside, read_object
from ..format import FileMethod, FileTensor
from ..models.card import Card
from ..models.door import ProgramSource
from ..models.kinds import KINDS, TASK
from ..models.text.compiling import GENERATE
from ..models.text.signature import TextSignature, read_signature
from ..models.tokenizer import CONFIG, FILE, TEMPLATE, find_files
from ..plan import CompiledMethod

Name = Literal["chat", "image", "task", "any"]

PAGES: tuple[Name, ...] = ("chat", "image", "task", "any")
_ALWAYS = ("style.css", "LICENSES.txt", "ptegpu.js", "worker.js")
_IMPORT = re.compile(rb"""["'`]\./([a-z]+\.js)["'`]""")  # a module's name, in another one
EXAMPLES = ("Once upon a time", "The most important thing about")
TITLES = tuple(f"{t}\n" for t in ("The King's Daughter in the Forest", "The Wolf and the Tailor", "The Old Mill"))
QUESTIONS = ("What can you help me with?", "Tell me a short story.", "Explain what a GPU does, in one sentence.")
MIN_SIDE, MAX_RATIO = 4, 8  # pixels of a picture's side; of the longer side to the shorter one


@dataclass(frozen=True, slots=True)
class ImageInput:
    """The input of an image classifier, one picture, and its number of classes."""

    shape: tuple[int, ...]
    channels: int
    height: int
    width: int
    classes: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page, the reason for choosing it, and the facts that it shows."""

    name: Name
    why: str
    card: Card
    signature: TextSignature | None = None  # of a language model
    picture: ImageInput | None = None  # of an image model


def choose(source: ProgramSource, name: Name | None) -> Page:
    """Return the page for a program, or the named one; raise UnsupportedProgram if it does not fit."""
    if name not in (None, *PAGES):
        raise InvalidInput(f"unknown page {name!r}: expected {', '.join(PAGES)}")
    for candidate in dict.fromkeys((KINDS[source.card.kind].page, "image", "any") if name is None else (name,)):
        page = FITS[candidate](source)
        if isinstance(page, Page):
            return replace(page, why="as requested") if name == "any" else page
    raise UnsupportedProgram(f"the page {name} is not for this program: {page}")


def _chat(source: ProgramSource) -> Page | str:
    if source.bundle is not None and GENERATE not in source.bundle.methods[0]:
        return f"the bundle has no method {GENERATE!r}: make it with `ptegpu compile`"
    try:
        return Page("chat", "it is a language model", source.card, read_signature(source.file, source.card))
    except UnsupportedProgram as e:
        return str(e)


def _task(source: ProgramSource) -> Page | str:
    card = source.card
    if card.kind != TASK:
        return f"it is {KINDS[card.kind].noun}; take another page, or a program that `ptegpu export hf` made"
    if card.takes == ("image",) and card.spec.drawn == "labels" and not card.many and not card.regression:
        return "it is an image classifier; take the page image"
    if card.audio and card.audio.features != "wave":
        return "pages cannot compute spectrograms; take the page any"
    return Page("task", f"it is for {card.task}", card)


def _image(source: ProgramSource) -> Page | str:
    methods = source.file.methods
    method = next((m for m in methods if m.name == default_method([m.name for m in methods])), None)
    picture = find_image_input(method) if method else "it has no method"
    if isinstance(picture, str):
        return f"{picture}; take the page any"
    colours = "grey" if picture.channels == 1 else "colour"
    why = f"it returns {picture.classes} numbers for a {colours} picture of {picture.width} × {picture.height}"
    return Page("image", why, source.card, picture=picture)


def _any(source: ProgramSource) -> Page | str:
    return Page("any", "it is neither a language model nor an image classifier", source.card)


FITS: dict[str, Callable[[ProgramSource], Page | str]] = {"chat": _chat, "image": _image, "task": _task, "any": _any}


def page_files(folder: Path, page: Name, chats: bool) -> list[str]:
    """Return the files of `folder` that a page needs besides its .html: modules and the modules that they import."""
    without = {"template.js", "jinja.js"} if not chats else set()
    without |= {"llm.js"} if page != "chat" else set()
    files: list[str] = []
    queue = [*_ALWAYS, f"{page}.js"]
    while queue:
        name = queue.pop(0)
        if name not in files:
            files.append(name)
            named = _IMPORT.findall((folder / name).read_bytes()) if name.endswith(".js") else []
            queue += [n for n in (module.decode() for module in named) if n not in without and (folder / n).is_file()]
    return sorted(files)


def default_method(names: Sequence[str]) -> str:
    """Return `forward`, or else the first name."""
    return "forward" if "forward" in names else names[0] if names else ""


def find_image_input(method: FileMethod) -> ImageInput | str:
    """Return the input of a method that classifies images, or why the method is not one."""
    inputs, outputs = ([method.values[k] for k in ks] for ks in (method.inputs, method.outputs))
    if len(inputs) != 1 or not isinstance(inputs[0], FileTensor) or inputs[0].dtype is not DType.F32:
        return f"{method.name} does not take exactly one float32 tensor"
    if len(outputs) != 1 or not isinstance(outputs[0], FileTensor) or not outputs[0].dtype.is_float:
        return f"{method.name} does not return exactly one tensor of floats"
    sizes, results = inputs[0].sizes, outputs[0].sizes
    batch = 1 if inputs[0].dynamic else sizes[0] if sizes else 0
    shape = (batch, *sizes[1:])
    if len(shape) == 3 and shape[1] == shape[2]:  # its only channel has no dimension
        channels = 1
    elif len(shape) == 4:
        channels = shape[1]
    else:
        channels = 0
    height, width = shape[-2:] if channels else (0, 0)
    sides = min(height, width) >= MIN_SIDE and max(height, width) <= MAX_RATIO * min(height, width)
    if batch != 1 or channels not in (1, 3) or not sides:
        return f"input 0 of {method.name} has shape {list(sizes)}, not that of a picture: [1, 1 or 3, height, width]"
    if len(results) not in (1, 2) or results[-1] < 2:
        return f"the output of {method.name} has shape {list(results)}, not a number for each class"
    return ImageInput(shape, channels, height, width, results[-1])


def language(
    page: Page, model: Path | None, tokenizer: Any, examples: Sequence[str] | None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the settings of a language model, and the tokenizer's files by their names in the site."""
    signature = page.signature
    assert signature is not None
    path, prefix = find_files(model, tokenizer)
    beside = {name: path.with_name(prefix + name) for name in (CONFIG, TEMPLATE)}
    files = {FILE: path} | {name: file for name, file in beside.items() if file.is_file()}
    for file in files.values():
        check_inside(file, path.parent, InvalidInput)
    config = read_object(files[CONFIG], InvalidInput) if CONFIG in files else {}
    read_object(path, InvalidInput)
    chat = TEMPLATE in files or bool(config.get("chat_template"))
    settings = {
        "method": GENERATE,
        "vocabulary": signature.vocabulary,
        "context": signature.context,
        "chunk": signature.chunk,
        "every": signature.every,
        "eos": list(signature.eos),
        "tokens": signature.tokens.value,
        "position": signature.position.value,
        "tokenizer": FILE,
        "config": CONFIG if CONFIG in files else None,
        "template": TEMPLATE if TEMPLATE in files else None,
        "examples": list((QUESTIONS if chat else EXAMPLES) if examples is None else examples),
        "chat": chat,
    }
    return settings, files


def task(page: Page, model: Path | None, tokenizer: Any) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the settings of a program for a task, and the tokenizer by its name in the site."""
    card = page.card
    settings: dict[str, Any] = {"task": card.task, "result": card.spec.drawn, "context": card.spec.context}
    settings |= {"labels": card.labels, "many": card.many, "regression": card.regression, "blank": card.blank}
    parts = {name: asdict(getattr(card, name)) for name in card.takes}
    settings |= {name: {k: v for k, v in part.items() if v is not None} for name, part in parts.items()}
    if card.text is None:
        return settings, {}
    path, _ = find_files(model, tokenizer)
    check_inside(path, path.parent, InvalidInput)
    read_object(path, InvalidInput)
    return settings, {FILE: path}


def image(
    page: Page,
    outer: CompiledMethod,
    labels: Sequence[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> dict[str, Any]:
    """Return the settings of an image model. A pixel from 0 to 255 becomes (pixel · scale - mean) / std.

    Arguments override the program's own card.
    """
    picture, own = page.picture, page.card.image
    assert picture is not None
    if own is not None:
        labels = labels or (page.card.labels if len(page.card.labels) == picture.classes else None)
        mean, std = mean or own.mean, std or own.std
    if labels is not None and len(labels) != picture.classes:
        raise InvalidInput(f"{len(labels)} labels for {picture.classes} classes: give one for each class")
    return {
        "shape": list(picture.shape),
        "channels": picture.channels,
        "height": picture.height,
        "width": picture.width,
        "scale": own.scale if own else 1 / 255,
        "mean": _each(mean, picture.channels, 0.0, "mean"),
        "std": _each(std, picture.channels, 1.0, "std"),
        "labels": None if labels is None else list(labels),
        "draw": picture.channels == 1,
        "softmax": not _returns_probabilities(outer),
    } | ({"shortest": own.shortest, "resize": own.resize and list(own.resize)} if own else {})


def _each(values: Sequence[float] | None, channels: int, otherwise: float, name: str) -> list[float]:
    numbers = [otherwise] if values is None else [float(v) for v in values]
    valid = all(map(math.isfinite, numbers)) and not (name == "std" and 0.0 in numbers)
    if len(numbers) not in (1, channels) or not valid:
        expected = "one number" if channels == 1 else f"one number, or {channels}, one for each channel"
        raise InvalidInput(f"invalid {name} {numbers}: expected {expected}{', not 0' if name == 'std' else ''}")
    return numbers * (channels // len(numbers))


def _returns_probabilities(outer: CompiledMethod) -> bool:
    """Return whether the last kernel, judging by its name, turns logits into probabilities."""
    labels = [d.label for p in outer.plans for f in p.families for s in f.steps for c in s for d in c.dispatches]
    last = labels[-1] if labels else ""
    return ("softmax" in last and "log_softmax" not in last) or "sigmoid" in last
