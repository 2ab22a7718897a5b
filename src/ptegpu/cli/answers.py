"""`ptegpu run --image`, `--audio` and `--text`: labels, tags, an answer, an embedding or a picture."""

from __future__ import annotations

import colorsys
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import typer

from ..errors import InvalidInput
from ..files import naming
from ..models.card import Card
from ..models.tasks.pipeline import Pipeline
from ..models.tasks.results import Answer, Label, Span
from ..models.tasks.specs import TASKS
from ..models.wave import read_wave
from ..units import dims, duration, number
from .console import bars, note, progress
from .options import LoadFlags
from .report import CommandReport
from .values import check_output, summary, values_text

BAR = 20  # characters of a full bar
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class TaskFlags:
    """The input of a program that has a task."""

    PANEL: ClassVar[str] = "Programs made by ptegpu export hf"

    image: Annotated[list[Path] | None, typer.Option(help="A picture; repeat for more.")] = None
    audio: Annotated[Path | None, typer.Option(help="A sound: a .wav file.")] = None
    text: Annotated[list[str] | None, typer.Option(help="A text; repeat for more.")] = None
    context: Annotated[str | None, typer.Option(help="The passage that answers a question (--text).")] = None
    top: Annotated[int, typer.Option(help="Number of labels to show.", min=1)] = 5
    out: Annotated[Path | None, typer.Option(help="The file for the picture that the program makes.")] = None


def takes_text(card: Card) -> list[str]:
    """Describe the inputs of a program."""
    inputs = []
    if card.image:
        colours = "colour" if card.image.channels == 3 else "grey"
        sides = f"{card.image.width} × {card.image.height}"
        inputs.append(f"{colours} pictures of {sides}, up to {card.image.batch} at once")
    if card.audio:
        lengths = f"up to {duration(card.audio.most / card.audio.rate)}"
        inputs.append(f"sounds of {lengths}, {card.audio.rate:,} samples in a second")
    if card.text:
        inputs.append(f"texts of up to {card.text.length:,} tokens, up to {card.text.batch} at once")
    return inputs


def try_it(card: Card, path: Path) -> str:
    """Return a command that uses a program."""
    examples = {"image": "--image picture.png", "audio": "--audio sound.wav", "text": '--text "…"'}
    more = " --out result.png" if card.spec.draws else ' --context "…"' if card.spec.context else ""
    return f"ptegpu run {shlex.quote(str(path))} {' '.join(examples[name] for name in card.takes)}{more}"


def answer(
    model: Path, flags: TaskFlags, tokenizer: Path | None, loading: LoadFlags, data: list[Path] | None
) -> CommandReport:
    """Load the program, run it on the inputs, and report the results."""
    check_output(flags.out, "--out", *PICTURES)
    with bars(f"Loading {model.name}") as update:
        started = time.perf_counter()
        opened = Pipeline(model, loading.options(update), tokenizer, data=data or None)
        load_s = time.perf_counter() - started
    with opened as pipe:
        card, adapter = pipe.card, pipe.program.device.info
        arguments = _arguments(card, flags)
        with progress(f"Running {model.name}"):
            started = time.perf_counter()
            result = pipe(**arguments)
            run_s = time.perf_counter() - started
    first = card.takes[0]
    results = result if isinstance(arguments.get(first), list) else [result]
    names = [str(path) for path in flags.image or []] if first == "image" else flags.text or [str(flags.audio)]
    items: list[dict[str, Any]] = []
    report = CommandReport({"model": str(model), "task": card.task, "adapter": adapter.record, "results": items})
    report.line((model.name, "bold"), f" · {card.task} on {adapter.place}")
    for name, result in zip(names, results):
        if len(results) > 1:
            report.line((name, "bold"))
        items.append({"input": name, **_add_result(report, result, card)})
    if flags.out is not None:
        _save(flags.out, results, card)
        report.record["out"] = str(flags.out)
        report.line(f"wrote {flags.out}")
    report.record |= {"load_s": load_s, "run_s": run_s}
    report.line(f"load {duration(load_s)} · run {duration(run_s)}")
    return report


def _arguments(card: Card, flags: TaskFlags) -> dict[str, Any]:
    """Return the arguments of the pipeline, after checking that they suit the task."""
    images, texts = flags.image or [], flags.text or []
    for name, value in {"image": images, "audio": flags.audio, "text": texts}.items():
        if bool(value) != (name in card.takes):
            raise InvalidInput(
                f"this program is for {card.task}: it takes {' and '.join('--' + n for n in card.takes)}"
                + (f", not --{name}" if value else "")
            )
    if len(card.takes) == 2 and len(images) > 1:
        raise InvalidInput(f"{card.task} takes one --image")
    if flags.out is not None and (not card.spec.draws or len(images) > 1):
        drawing = " and ".join(name for name, spec in TASKS.items() if spec.draws)
        raise InvalidInput(f"--out is for the picture that {drawing} make of one --image")
    if flags.audio is not None:
        assert card.audio is not None
        seconds, most = read_wave(flags.audio, 0.01)[2], card.audio.most / card.audio.rate
        if seconds > most:
            note(f"{flags.audio.name} lasts {duration(seconds)}; only the first {duration(most)} are used")
    image = images[0] if len(card.takes) == 2 else images
    inputs = {"image": image, "text": texts, "audio": flags.audio, "context": flags.context}
    return {"top": flags.top} | {name: value for name, value in inputs.items() if value not in (None, [])}


def _add_result(report: CommandReport, result: Any, card: Card) -> dict[str, Any]:
    """Add the text of a result to the report; return its record."""
    if isinstance(result, str):
        report.line(result or "(no speech)")
        return {"text": result}
    if isinstance(result, Answer):
        where = f"characters {result.start} to {result.end}"
        report.line((result.text or "(no answer)", "bold"), f" · {_percent(result.score)}, {where}")
        return {"answer": asdict(result)}
    if isinstance(result, list):
        records = [asdict(r) for r in result]
        if result and isinstance(result[0], Span):
            rows = [[s.text, s.label, _percent(s.score), f"{s.start}–{s.end}"] for s in result]
            report.table(["token", "label", "", "characters"], rows, right=(2,))
            return {"tokens": records}
        if card.regression:
            report.table(["output", ""], [[r.label, number(r.score)] for r in result], right=(1,))
        else:
            report.table(["label", "", ""], map(_share_row, result), right=(1,))
        return {"labels": records}
    if card.spec.drawn == "segments":
        shares = _shares(result, card)
        classes = "1 class" if len(shares) == 1 else f"{len(shares)} classes"
        report.line(f"{dims(result.shape[::-1])} pixels, {classes}")
        report.table(["class", "pixels", ""], map(_share_row, shares), right=(1,))
        return {"shape": list(result.shape), "classes": [asdict(share) for share in shares]}
    figures = summary(result)
    extent = f"from {number(figures['min'])} to {number(figures['max'])}, mean {number(figures['mean'])}"
    report.line(f"{dims(result.shape)} · {extent}")
    report.line(values_text(result))
    if card.spec.drawn == "embedding":
        return {"shape": list(result.shape), "embedding": result.tolist()}
    return figures


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _share_row(share: Label) -> list[str]:
    return [share.label, _percent(share.score), "█" * round(BAR * share.score)]


def _shares(classes: np.ndarray, card: Card) -> list[Label]:
    """Return each class of pixels with its share of the picture, the largest first."""
    ids, counts = np.unique(classes, return_counts=True)
    names = [card.labels[k] if k < len(card.labels) else f"class {k}" for k in ids]
    order = np.argsort(-counts, kind="stable")
    return [Label(names[k], float(counts[k] / classes.size)) for k in order]


def _save(path: Path, results: list[Any], card: Card) -> None:
    """Draw classes in colours, or depths in grey with the largest value white."""
    from PIL import Image

    (values,) = results
    if card.spec.drawn == "segments":
        colours = np.array([_colour(k) for k in range(int(values.max()) + 1)], np.uint8)
        picture = colours[values]
    else:
        low, high = float(values.min()), float(values.max())
        picture = np.round((values - low) * (255 / ((high - low) or 1))).astype(np.uint8)
    with naming(path):
        Image.fromarray(picture).save(path)


def _colour(k: int) -> list[int]:
    """Return the colour of class `k`; neighbours are the golden angle apart."""
    return [round(255 * c) for c in colorsys.hsv_to_rgb(k * 0.618034 % 1, 0.65, 0.95 - 0.25 * (k % 3 == 2))]
