"""`ptegpu demo digits`: the bundled digit classifier on one of its images, compared with PyTorch's results."""

from __future__ import annotations

import time
from importlib.resources import as_file, files
from itertools import zip_longest
from typing import Annotated

import numpy as np
import typer

import ptegpu

from ..units import duration, number
from .console import progress
from .options import LoadFlags
from .report import CommandReport

SHADES = " ░▒▓█"
BAR = 30  # characters
TOLERANCE = 1e-4  # of a probability


def digits(
    *, digit: Annotated[int, typer.Option(help="Which image to show.", min=0, max=9)] = 3, loading: LoadFlags
) -> CommandReport:
    """Run the other bundled model, which classifies handwritten digits. Needs no extra."""
    folder = files("ptegpu") / "demo"
    with as_file(folder / "digits.npz") as file:
        arrays = np.load(file)
        images, labels, expected = arrays["images"], arrays["labels"], arrays["expected"]  # (10, 8, 8), (10,), (10, 10)
    with as_file(folder / "digits.pte") as path, progress("Loading digits.pte"):
        started = time.perf_counter()
        program = ptegpu.open(path, loading.options())
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
    correct = int((probabilities.argmax(1) == labels).sum())
    report = CommandReport(
        {
            "adapter": adapter.record,
            "digit": digit,
            "input": images[digit].tolist(),
            "output": probabilities[digit].tolist(),
            "right": correct,
            "images": len(images),
            "error": error,
            "load_s": load_s,
            "run_s": runs_s,
        },
        exit_code=1 if error > TOLERANCE else 0,
    )
    report.line(("digits.pte", "bold"), f" on {adapter.place}")
    report.line(("input, 8×8 float32    output, probability of each digit", "dim"))
    best = int(probabilities[digit].argmax())
    rows = picture(images[digit]).splitlines()
    for row, k, p in zip_longest(rows, range(10), probabilities[digit], fillvalue=""):
        style = ("green" if k == labels[digit] else "red") if k == best else "dim"
        bar = f"{k}  {'█' * round(float(p) * BAR):<{BAR}} {p:6.1%}"
        report.line((f"{row:<22}", "cyan"), (bar, style))
    report.line(f"{correct} of {len(images)} images correct · at most {number(error)} from PyTorch's probabilities")
    report.line(f"load {duration(load_s)} · first run {duration(runs_s[0])} · best run {duration(min(runs_s))}")
    return report


def picture(image: np.ndarray) -> str:
    """Draw brightness from 0 to 1 as shaded blocks, two characters wide to be about square."""
    levels = np.clip(np.rint(image * (len(SHADES) - 1)), 0, len(SHADES) - 1).astype(int)
    return "\n".join("".join(SHADES[level] * 2 for level in row) for row in levels)
