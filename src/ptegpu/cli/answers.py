"""What `ptegpu run --image`, `--audio` and `--text` print: labels, tags, an answer, an embedding, a picture."""

from __future__ import annotations

import colorsys
import shlex
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..files import naming
from ..models.card import Card
from ..models.tasks.pipeline import Pipeline
from ..models.tasks.results import Answer, Label, Span
from ..models.tasks.specs import TASKS
from ..models.wave import read_wave
from ..runtime import LoadOptions
from ..units import dims, duration, number
from .console import bars, note, print_json, progress, say, show_table
from .values import check_folder, summary, values_text

BAR = 20  # characters of a full bar
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line gives."""

    images: list[Path]
    audio: Path | None
    texts: list[str]
    context: str | None
    tokenizer: Path | None
    top: int
    out: Path | None


def takes_text(card: Card) -> list[str]:
    """What a program takes, in words."""
    found = []
    if card.image:
        colours = "colour" if card.image.channels == 3 else "grey"
        sides = f"{card.image.width} × {card.image.height}"
        found.append(f"{colours} pictures of {sides}, up to {card.image.batch} at once")
    if card.audio:
        lengths = f"up to {duration(card.audio.most / card.audio.rate)}"
        found.append(f"sounds of {lengths}, {card.audio.rate:,} samples in a second")
    if card.text:
        found.append(f"texts of up to {card.text.length:,} tokens, up to {card.text.batch} at once")
    return found


def try_it(card: Card, path: Path) -> str:
    """A command that uses a program."""
    options = {
        "image": "--image picture.png",
        "audio": "--audio sound.wav",
        "text": '--text "…"',
    }
    more = ' --context "…"' if card.spec.context else ""
    more = " --out result.png" if card.spec.draws else more
    return f"ptegpu run {shlex.quote(str(path))} {' '.join(options[name] for name in card.takes)}{more}"


def answer(model: Path, asked: Asked, options: LoadOptions, data: Any, json: bool) -> None:
    """Load the program, ask it, and print what it says."""
    check_folder(asked.out, "--out")
    if asked.out is not None and asked.out.suffix.lower() not in PICTURES:
        raise InvalidInput(f"--out {asked.out} must end in one of {', '.join(PICTURES)}")
    with bars(f"Loading {model.name}") as told:
        started = time.perf_counter()
        opened = Pipeline(model, replace(options, progress=told), asked.tokenizer, data=data)
        load_s = time.perf_counter() - started
    with opened as pipe:
        given = _given(pipe.card, asked)
        with progress(f"Running {model.name}"):
            started = time.perf_counter()
            found = pipe(**given)
            run_s = time.perf_counter() - started
        adapter = pipe.program.device.info
    names = [str(p) for p in asked.images] if pipe.card.takes[0] == "image" else asked.texts or [str(asked.audio)]
    results = found if isinstance(given.get(pipe.card.takes[0]), list) else [found]
    if asked.out is not None:
        _save(asked.out, results, pipe.card)
    if json:
        listed = [{"input": name, **_plain(result, pipe.card)} for name, result in zip(names, results)]
        head = {"model": str(model), "task": pipe.card.task, "adapter": adapter.record, "results": listed}
        print_json(head | ({"out": str(asked.out)} if asked.out else {}) | {"load_s": load_s, "run_s": run_s})
        return
    say((model.name, "bold"), f" · {pipe.card.task} on {adapter.place}")
    for name, result in zip(names, results):
        _show(name if len(results) > 1 else "", result, pipe)
    if asked.out is not None:
        say(f"wrote {asked.out}")
    say(f"load {duration(load_s)} · run {duration(run_s)}")


def _given(card: Card, asked: Asked) -> dict[str, Any]:
    """The arguments of the pipeline."""
    options = {"image": asked.images, "audio": asked.audio, "text": asked.texts}
    for name, value in options.items():
        if bool(value) != (name in card.takes):
            raise InvalidInput(
                f"this program is for {card.task}: it takes {' and '.join('--' + n for n in card.takes)}"
                + (f", not --{name}" if value else "")
            )
    given: dict[str, Any] = {"top": asked.top}
    if "image" in card.takes:
        given["image"] = asked.images
    if len(card.takes) == 2:
        if len(asked.images) > 1:
            raise InvalidInput(f"{card.task} takes one --image")
        given |= {"image": asked.images[0], "text": asked.texts}
    elif asked.texts:
        given["text"] = asked.texts
    if asked.context is not None:
        given["context"] = asked.context
    if asked.audio is not None:
        given["audio"] = asked.audio
        assert card.audio is not None
        seconds, most = read_wave(asked.audio, 0.01)[2], card.audio.most / card.audio.rate
        if seconds > most:
            note(f"{asked.audio.name} has {duration(seconds)}, of which the first {duration(most)} are used")
    if asked.out is not None and (not card.spec.draws or len(asked.images) > 1):
        drawing = " and ".join(name for name, spec in TASKS.items() if spec.draws)
        raise InvalidInput(f"--out is for the picture that {drawing} make of one --image")
    return given


def _show(name: str, result: Any, pipe: Pipeline) -> None:
    if name:
        say((name, "bold"))
    if isinstance(result, str):
        say(result or "(nothing was said)")
    elif isinstance(result, Answer):
        where = f"characters {result.start} to {result.end}"
        say((result.text or "(no answer)", "bold"), f" · {_percent(result.score)}, {where}")
    elif isinstance(result, list) and result and isinstance(result[0], Span):
        rows = [[s.text, s.label, _percent(s.score), f"{s.start}–{s.end}"] for s in result]
        show_table("", ["token", "label", "", "characters"], rows, right=(2,))
    elif isinstance(result, list) and pipe.card.regression:
        show_table("", ["output", ""], [[r.label, number(r.score)] for r in result], right=(1,))
    elif isinstance(result, list):
        show_table("", ["label", "", ""], [[r.label, _percent(r.score), _bar(r.score)] for r in result], right=(1,))
    elif pipe.card.spec.drawn == "segments":
        rows = [[label, _percent(part), _bar(part)] for label, part in _shares(result, pipe.card)]
        say(f"{dims(result.shape[::-1])} pixels, {'1 class' if len(rows) == 1 else f'{len(rows)} classes'}")
        show_table("", ["class", "pixels", ""], rows, right=(1,))
    else:
        found = summary(result)
        figures = f"from {number(found['min'])} to {number(found['max'])}, mean {number(found['mean'])}"
        say(f"{dims(result.shape)} · {figures}")
        say(values_text(result))


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _bar(part: float) -> str:
    return "█" * round(BAR * part)


def _shares(classes: np.ndarray, card: Card) -> list[tuple[str, float]]:
    """The classes of pixels with their part of the picture, the largest first."""
    ids, counts = np.unique(classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    names = [card.labels[k] if k < len(card.labels) else f"class {k}" for k in ids]
    return [(names[k], float(counts[k] / classes.size)) for k in order]


def _plain(result: Any, card: Card) -> dict[str, Any]:
    """A result for programs."""
    if isinstance(result, str):
        return {"text": result}
    if isinstance(result, Answer):
        return {"answer": asdict(result)}
    if isinstance(result, list):
        kind = "tokens" if result and isinstance(result[0], Span) else "labels"
        return {kind: [asdict(r) for r in result]}
    if card.spec.drawn == "segments":
        return {"shape": list(result.shape), "classes": [asdict(Label(*pair)) for pair in _shares(result, card)]}
    if card.spec.drawn == "embedding":
        return {"shape": list(result.shape), "embedding": result.tolist()}
    return summary(result)


def _save(path: Path, results: list[Any], card: Card) -> None:
    """Classes in colours, or depths in grey, the nearest or largest white."""
    from PIL import Image

    (made,) = results
    if card.spec.drawn == "segments":
        colours = np.array([_colour(k) for k in range(int(made.max()) + 1)], np.uint8)
        picture = colours[made]
    else:
        low, high = float(made.min()), float(made.max())
        picture = np.round((made - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    with naming(path):
        Image.fromarray(picture).save(path)


def _colour(k: int) -> list[int]:
    """Colours that differ, the golden angle apart."""
    return [round(255 * c) for c in colorsys.hsv_to_rgb(k * 0.618034 % 1, 0.65, 0.95 - 0.25 * (k % 3 == 2))]
