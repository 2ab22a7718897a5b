"""`ptegpu run`: run a method on inputs from files or generated ones; print, save or compare its outputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..errors import InvalidInput
from ..files import naming
from ..runtime import MethodSignature
from ..units import dims, duration, number
from .answers import TaskFlags, answer
from .compare import SCALE, ArrayDifference, compare
from .console import bars, progress
from .inputs import CallFlags, largest, read_arrays
from .options import LoadFlags, ModelPath, TokenizerPath
from .report import CommandReport
from .values import check_output, declared, readable, summary, values_text

MISMATCH = 3  # exit code


def run(
    model: ModelPath,
    *,
    call: CallFlags,
    save: Annotated[Path | None, typer.Option(help="Write the outputs to FILE.npz (output0 …) or FILE.npy.")] = None,
    expect: Annotated[
        Path | None, typer.Option(help="Compare with FILE.npz or FILE.npy; exit with code 3 if they differ.")
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(help="Absolute tolerance of --expect.", min=0, show_default=f"{SCALE:g} of the largest value"),
    ] = None,
    rtol: Annotated[float, typer.Option(help="Relative tolerance of --expect.", min=0)] = 1e-3,
    repeat: Annotated[int, typer.Option(help="Number of runs to time; state is reset before each.", min=1)] = 1,
    task: TaskFlags,
    tokenizer: TokenizerPath = None,
    loading: LoadFlags,
) -> CommandReport:
    """Run a method and print its outputs, or the answer to a picture, a sound or a text."""
    if task.image or task.audio or task.text:
        ignored = {
            "--method": call.method,
            "--input": call.input,
            "--shape": call.shape,
            "--save": save,
            "--expect": expect,
        }
        _refuse(ignored, "cannot be combined with --image, --audio or --text")
        return answer(model, task, tokenizer, loading, call.data)
    _refuse({"--out": task.out, "--context": task.context}, "needs --image, --audio or --text")
    check_output(save, "--save", ".npz", ".npy")
    prepared = call.prepare(model, loading.options())
    inputs, outputs = declared(prepared.method)
    signature = MethodSignature(prepared.method)
    expected = read_arrays(expect, "output", len(outputs), largest(outputs)) if expect else None
    with bars(f"Loading {model.name}") as update:
        started = time.perf_counter()
        program = prepared.load(loading.options(update), call.data)
        load_s = time.perf_counter() - started
    with program, progress(f"Running {prepared.method.name}"):
        method = program.method(prepared.method.name)
        results, runs_s = [], []
        for _ in range(repeat):
            program.reset()
            started = time.perf_counter()
            results = method.execute(prepared.arguments)
            runs_s.append(time.perf_counter() - started)
        adapter = program.device.info
    arguments = [readable(x, value) for x, value in zip(prepared.arguments, inputs)]
    results = [readable(y, value) for y, value in zip(results, outputs)]
    if save:
        save_outputs(save, results)
    report = CommandReport(
        {
            "model": str(model),
            "method": method.name,
            "adapter": adapter.record,
            "inputs": [{"name": s.name, **summary(x)} for s, x in zip(signature.inputs, arguments)],
            "outputs": [{"name": s.name, **summary(y)} for s, y in zip(signature.outputs, results)],
            "load_s": load_s,
            "run_s": runs_s,
        }
    )
    report.line((model.name, "bold"), f" · {method.name} on {adapter.place}")
    rows = [
        [r["name"], r["dtype"], dims(r["shape"]) if r["shape"] is not None else "", *_extremes(r), values_text(x)]
        for r, x in zip(report.record["inputs"] + report.record["outputs"], [*arguments, *results])
    ]
    report.table(["", "dtype", "shape", "min", "mean", "max", "first values"], rows, right=(3, 4, 5))
    report.line(f"load {duration(load_s)} · run {_timings(runs_s)}")
    if save:
        report.line(f"saved {save}")
    if expected is not None:
        _add_differences(report, [compare(y, e, atol, rtol) for y, e in zip(results, expected)], expect, atol, rtol)
    return report


def _refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise BadParameter for the first option that has a value."""
    for name, value in options.items():
        if value:
            raise typer.BadParameter(reason, param_hint=name)


def save_outputs(path: Path, outputs: list[Any]) -> None:
    """Write the outputs that are numbers or arrays: `output0`, `output1`, … of an .npz, or the only one as .npy."""
    arrays = {
        f"output{k}": np.asarray(y) for k, y in enumerate(outputs) if isinstance(y, np.ndarray | bool | int | float)
    }
    if path.suffix != ".npz" and len(arrays) != 1:
        raise InvalidInput(f"{path} can hold one array, the method has {len(arrays)} outputs: save them as .npz")
    with naming(path):
        if path.suffix == ".npz":
            np.savez(path, **arrays)  # type: ignore[arg-type]
        else:
            np.save(path, next(iter(arrays.values())))


def _extremes(record: dict[str, Any]) -> list[str]:
    return ["" if record.get(name) is None else number(record[name]) for name in ("min", "mean", "max")]


def _timings(runs_s: list[float]) -> str:
    first, rest = duration(runs_s[0]), runs_s[1:]
    if not rest:
        return first
    return f"first {first}, then median {duration(statistics.median(rest))}, best {duration(min(rest))} of {len(rest)}"


def _add_differences(
    report: CommandReport, differences: list[ArrayDifference], file: Path | None, atol: float | None, rtol: float
) -> None:
    equal = not any(d.wrong for d in differences)
    outputs = [asdict(d) | {"error": d.error} for d in differences]
    report.record["expect"] = {"file": str(file), "equal": equal, "outputs": outputs}
    tolerance = f"atol {f'{SCALE:g} of the largest value' if atol is None else f'{atol:g}'}, rtol {rtol:g}"
    if equal:
        worst = max((d.error for d in differences), default=0.0)
        report.line(("equal", "bold green"), f" to {file} (worst difference {number(worst)}, {tolerance})")
        return
    report.exit_code = MISMATCH
    rows = []
    for k, d in enumerate(differences):
        where = d.problem or (str(list(d.index)) if d.total else "")
        values = ["", "", ""] if d.problem or not d.total else [f"{d.got:.7g}", f"{d.expected:.7g}", number(d.error)]
        rows.append([f"output {k}", f"{d.wrong:,} of {d.total:,}", where, *values])
    report.line(("unequal", "bold red"), f" to {file} ({tolerance})")
    report.table(["", "wrong", "worst at", "got", "expected", "difference"], rows, right=(1, 3, 4, 5))
