"""Which page shows a program, and what `site.json` tells it: chat for language models, image for classifiers,
task for what `ptegpu export hf` made, any."""

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
from ..format import Method, Tensor
from ..models.card import Card
from ..models.door import Source
from ..models.kinds import KINDS, TASK
from ..models.text.compiling import GENERATE
from ..models.text.signature import Signature, read_signature
from ..models.tokenizer import CONFIG, FILE, TEMPLATE, find_files
from ..plan import CompiledMethod

Name = Literal["chat", "image", "task", "any"]

PAGES: tuple[Name, ...] = ("chat", "image", "task", "any")
_ALWAYS = ("style.css", "LICENSES.txt", "ptegpu.js", "worker.js")
_NAMED = re.compile(rb"""["'`]\./([a-z]+\.js)["'`]""")  # a module, in another one
EXAMPLES = ("Once upon a time", "The most important thing about")
TITLES = tuple(f"{t}\n" for t in ("The King's Daughter in the Forest", "The Wolf and the Tailor", "The Old Mill"))
QUESTIONS = ("What can you help me with?", "Tell me a short story.", "Explain what a GPU does, in one sentence.")
SMALLEST, WIDEST = 4, 8  # pixels of a picture's side; how much longer one side may be than the other


@dataclass(frozen=True, slots=True)
class Picture:
    """What an image model takes: one picture, and what it gives: a number for each of `classes`."""

    shape: tuple[int, ...]
    channels: int
    height: int
    width: int
    classes: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page, why it is this one, and what it is given."""

    name: Name
    why: str
    card: Card
    signature: Signature | None = None  # of a language model
    picture: Picture | None = None  # of an image model


def choose(source: Source, wanted: Name | None) -> Page:
    """Return the page for a program, or the one that is wanted; UnsupportedProgram if that does not fit."""
    if wanted not in (None, *PAGES):
        raise InvalidInput(f"page is {', '.join(PAGES)}, not {wanted!r}")
    for name in dict.fromkeys((KINDS[source.card.kind].page, "image", "any") if wanted is None else (wanted,)):
        found = FITS[name](source)
        if isinstance(found, Page):
            return replace(found, why="as asked for") if wanted == "any" else found
    raise UnsupportedProgram(f"the page {wanted} is not for this program: {found}")


def _chat(source: Source) -> Page | str:
    if source.bundle is not None and GENERATE not in source.bundle.methods[0]:
        return f"the bundle has no method {GENERATE!r}: make it with `ptegpu compile`"
    try:
        return Page("chat", "it is a language model", source.card, read_signature(source.file, source.card))
    except UnsupportedProgram as e:
        return str(e)


def _task(source: Source) -> Page | str:
    card = source.card
    if card.kind != TASK:
        return f"it is {KINDS[card.kind].noun}; take another page, or a program that `ptegpu export hf` made"
    if card.takes == ("image",) and card.spec.drawn == "labels" and not card.many and not card.regression:
        return "it is an image classifier; take the page image"
    if card.audio and card.audio.features != "wave":
        return "spectrograms are not made there; take the page any"
    return Page("task", f"it is for {card.task}", card)


def _image(source: Source) -> Page | str:
    methods = source.file.methods
    method = next((m for m in methods if m.name == default_method([m.name for m in methods])), None)
    picture = find_picture(method) if method else "it has no method"
    if isinstance(picture, str):
        return f"{picture}; take the page any"
    colours = "grey" if picture.channels == 1 else "colour"
    why = f"it makes {picture.classes} numbers of a {colours} picture of {picture.width} × {picture.height}"
    return Page("image", why, source.card, picture=picture)


def _any(source: Source) -> Page | str:
    return Page("any", "it is neither a language model nor an image classifier", source.card)


FITS: dict[str, Callable[[Source], Page | str]] = {"chat": _chat, "image": _image, "task": _task, "any": _any}


def page_files(folder: Path, page: Name, chats: bool) -> list[str]:
    """The files of `folder` that a page needs, besides its own .html: modules, and those that they name."""
    without = {"template.js", "jinja.js"} if not chats else set()
    without |= {"llm.js"} if page != "chat" else set()
    found: list[str] = []
    queue = [*_ALWAYS, f"{page}.js"]
    while queue:
        name = queue.pop(0)
        if name not in found:
            found.append(name)
            named = _NAMED.findall((folder / name).read_bytes()) if name.endswith(".js") else []
            queue += [n for n in (module.decode() for module in named) if n not in without and (folder / n).is_file()]
    return sorted(found)


def default_method(names: Sequence[str]) -> str:
    """`forward`, or the first."""
    return "forward" if "forward" in names else names[0] if names else ""


def find_picture(method: Method) -> Picture | str:
    """What a method takes and gives if it classifies images; otherwise the reason why it does not."""
    takes, gives = ([method.values[k] for k in ks] for ks in (method.inputs, method.outputs))
    if len(takes) != 1 or not isinstance(takes[0], Tensor) or takes[0].dtype is not DType.F32:
        return f"{method.name} does not take one float32 tensor alone"
    if len(gives) != 1 or not isinstance(gives[0], Tensor) or not gives[0].dtype.is_float:
        return f"{method.name} does not give one tensor of floats alone"
    sizes, results = takes[0].sizes, gives[0].sizes
    batch = 1 if takes[0].dynamic else sizes[0] if sizes else 0
    shape = (batch, *sizes[1:])
    if len(shape) == 3 and shape[1] == shape[2]:  # without a dimension for its one channel
        channels = 1
    elif len(shape) == 4:
        channels = shape[1]
    else:
        channels = 0
    height, width = shape[-2:] if channels else (0, 0)
    sides = min(height, width) >= SMALLEST and max(height, width) <= WIDEST * min(height, width)
    if batch != 1 or channels not in (1, 3) or not sides:
        return f"input 0 of {method.name} is of {list(sizes)}, no picture [1, 1 or 3, height, width]"
    if len(results) not in (1, 2) or results[-1] < 2:
        return f"the output of {method.name} is of {list(results)}, no number for each class"
    return Picture(shape, channels, height, width, results[-1])


def language(
    page: Page, model: Path | None, tokenizer: Any, examples: Sequence[str] | None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """What the site says about a language model, and the tokenizer's files by their names in the site."""
    signature = page.signature
    assert signature is not None
    path, prefix = find_files(model, tokenizer)
    beside = {name: path.with_name(prefix + name) for name in (CONFIG, TEMPLATE)}
    found = {FILE: path} | {name: file for name, file in beside.items() if file.is_file()}
    for file in found.values():
        check_inside(file, path.parent, InvalidInput)
    config = read_object(found[CONFIG], InvalidInput) if CONFIG in found else {}
    read_object(path, InvalidInput)
    chat = TEMPLATE in found or bool(config.get("chat_template"))
    told = {
        "method": GENERATE,
        "vocabulary": signature.vocabulary,
        "context": signature.context,
        "chunk": signature.chunk,
        "every": signature.every,
        "eos": list(signature.eos),
        "tokens": signature.tokens.value,
        "position": signature.position.value,
        "tokenizer": FILE,
        "config": CONFIG if CONFIG in found else None,
        "template": TEMPLATE if TEMPLATE in found else None,
        "examples": list((QUESTIONS if chat else EXAMPLES) if examples is None else examples),
        "chat": chat,
    }
    return told, found


def task(page: Page, model: Path | None, tokenizer: Any) -> tuple[dict[str, Any], dict[str, Path]]:
    """What the site says about a program for a task, and the tokenizer by its name in the site."""
    card = page.card
    told: dict[str, Any] = {"task": card.task, "result": card.spec.drawn, "context": card.spec.context}
    told |= {"labels": card.labels, "many": card.many, "regression": card.regression, "blank": card.blank}
    parts = {name: asdict(getattr(card, name)) for name in card.takes}
    told |= {name: {k: v for k, v in part.items() if v is not None} for name, part in parts.items()}
    if card.text is None:
        return told, {}
    path, _ = find_files(model, tokenizer)
    check_inside(path, path.parent, InvalidInput)
    read_object(path, InvalidInput)
    return told, {FILE: path}


def image(
    page: Page,
    outer: CompiledMethod,
    labels: Sequence[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> dict[str, Any]:
    """What the site says about an image model. A pixel from 0 to 255 becomes (pixel · scale - mean) / std.

    A program that says so itself need not be told; what is given all the same wins.
    """
    picture, told = page.picture, page.card.image
    assert picture is not None
    if told is not None:
        labels = labels or (page.card.labels if len(page.card.labels) == picture.classes else None)
        mean, std = mean or told.mean, std or told.std
    if labels is not None and len(labels) != picture.classes:
        raise InvalidInput(f"there are {len(labels)} labels, the model has {picture.classes} classes: give one each")
    return {
        "shape": list(picture.shape),
        "channels": picture.channels,
        "height": picture.height,
        "width": picture.width,
        "scale": told.scale if told else 1 / 255,
        "mean": _each(mean, picture.channels, 0.0, "mean"),
        "std": _each(std, picture.channels, 1.0, "std"),
        "labels": None if labels is None else list(labels),
        "draw": picture.channels == 1,
        "softmax": not _gives_probabilities(outer),
    } | ({"shortest": told.shortest, "resize": told.resize and list(told.resize)} if told else {})


def _each(values: Sequence[float] | None, channels: int, otherwise: float, name: str) -> list[float]:
    given = [otherwise] if values is None else [float(v) for v in values]
    fine = all(map(math.isfinite, given)) and not (name == "std" and 0.0 in given)
    if len(given) not in (1, channels) or not fine:
        wanted = "one number" if channels == 1 else f"one number, or {channels}, one for each channel"
        raise InvalidInput(f"{name} is {wanted}{', not 0' if name == 'std' else ''}; there are {len(given)}: {given}")
    return given * (channels // len(given))


def _gives_probabilities(outer: CompiledMethod) -> bool:
    """Whether what is computed last makes probabilities of logits, as far as its name tells."""
    labels = [d.label for p in outer.plans for f in p.families for s in f.steps for c in s for d in c.dispatches]
    last = labels[-1] if labels else ""
    return ("softmax" in last and "log_softmax" not in last) or "sigmoid" in last
