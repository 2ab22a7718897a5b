"""`ptegpu demo digits`: the bundled digit classifier on one of its images, compared with PyTorch's results."""

from __future__ import annotations

import time
from importlib.resources import as_file, files
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

import ptegpu

from ..units import duration, number
from .console import console, print_json, progress, say
from .options import DeviceName, Engine, Precision

SHADES = " ░▒▓█"
BAR = 30  # characters
TOLERANCE = 1e-4  # of a probability


def digits(
    digit: Annotated[int, typer.Option(help="Which image to show.", min=0, max=9)] = 3,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run the other bundled model, which classifies handwritten digits. Needs no extra."""
    folder = files("ptegpu") / "demo"
    with as_file(folder / "digits.npz") as file:
        arrays = np.load(file)
        images, labels, expected = arrays["images"], arrays["labels"], arrays["expected"]  # (10, 8, 8), (10,), (10, 10)
    with as_file(folder / "digits.pte") as path, progress("Loading digits.pte"):
        started = time.perf_counter()
        program = ptegpu.load(path, device=device, engine=engine, precision=precision)
        load_s = time.perf_counter() - started
        with program:
            results, runs_s = [], []
            for image in images:
                started = time.perf_counter()
                results.append(program(image[None])[0])
                runs_s.append(time.perf_counter() - started)
            adapter = program.device.info
    probabilities = np.stack(results)
    error = float(np.abs(probabilities - expected).max())
    right = int((probabilities.argmax(1) == labels).sum())
    if json:
        print_json(
            {
                "adapter": adapter.record,
                "digit": digit,
                "input": images[digit].tolist(),
                "output": probabilities[digit].tolist(),
                "right": right,
                "images": len(images),
                "error": error,
                "load_s": load_s,
                "run_s": runs_s,
            }
        )
    else:
        say(("digits.pte", "bold"), f" on {adapter.place}")
        _show(images[digit], probabilities[digit], int(labels[digit]))
        say(f"{right} of {len(images)} images correct · at most {number(error)} from PyTorch's probabilities")
        say(f"load {duration(load_s)} · first run {duration(runs_s[0])} · best run {duration(min(runs_s))}")
    if error > TOLERANCE:
        raise typer.Exit(1)


def _show(image: np.ndarray, probabilities: np.ndarray, label: int) -> None:
    grid = Table.grid(padding=(0, 4))
    grid.add_row("input, 8×8 float32", "output, probability of each digit", style="dim")
    best = int(probabilities.argmax())
    lines = []
    for digit, p in enumerate(probabilities):
        style = ("green" if digit == label else "red") if digit == best else "dim"
        lines.append(Text(f"{digit}  {'█' * round(float(p) * BAR):<{BAR}} {p:6.1%}", style))
    grid.add_row(Text(picture(image), "cyan"), Text("\n").join(lines))
    console().print(grid)


def picture(image: np.ndarray) -> str:
    """Brightness from 0 to 1 as shaded blocks, two characters wide so that they are about square."""
    levels = np.clip(np.rint(image * (len(SHADES) - 1)), 0, len(SHADES) - 1).astype(int)
    return "\n".join("".join(SHADES[level] * 2 for level in row) for row in levels)
