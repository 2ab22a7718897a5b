"""`ptegpu run`: runs one method on inputs from files or generated ones; prints, saves or compares its outputs."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..errors import InvalidInput
from ..files import naming
from ..limits import Limits
from ..models.door import Source
from ..runtime import LoadOptions, Signature, Spec, open_program
from ..units import dims, duration, number
from .answers import Asked, answer
from .compare import SCALE, Difference, compare
from .console import bars, print_json, progress, say, show_table
from .generate import TokenizerPath
from .inputs import largest, make_inputs, parse_shapes, read_arrays
from .options import AsJson, Data, DeviceName, Engine, Inputs, LimitNames, MethodName, Model, Precision, Shapes
from .values import check_folder, declared, find_method, methods_of, readable, summary, values_text

MISMATCH = 3  # the exit code


def run(
    model: Model,
    method: MethodName = None,
    data: Data = None,
    input: Inputs = None,
    shape: Shapes = None,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    limit: LimitNames = None,
    save: Annotated[Path | None, typer.Option(help="Write the outputs to FILE.npz (output0 …) or FILE.npy.")] = None,
    expect: Annotated[
        Path | None, typer.Option(help="Compare with FILE.npz or FILE.npy; exit with code 3 if they differ.")
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            help="Absolute tolerance of --expect.", min=0, show_default=f"{SCALE:g} of the output's largest value"
        ),
    ] = None,
    rtol: Annotated[float, typer.Option(help="Relative tolerance of --expect.", min=0)] = 1e-3,
    repeat: Annotated[int, typer.Option(help="How many runs to time; state is reset before each.", min=1)] = 1,
    image: Annotated[
        list[Path] | None, typer.Option(help="Of a file that `ptegpu export hf` made: a picture; repeat for more.")
    ] = None,
    audio: Annotated[Path | None, typer.Option(help="Likewise, a sound: a .wav file.")] = None,
    text: Annotated[list[str] | None, typer.Option(help="Likewise, a text; repeat for more.")] = None,
    context: Annotated[str | None, typer.Option(help="What a question (--text) is answered from.")] = None,
    tokenizer: TokenizerPath = None,
    top: Annotated[int, typer.Option(help="How many labels to show.", min=1)] = 5,
    out: Annotated[Path | None, typer.Option(help="Where to write the picture that it makes.")] = None,
    json: AsJson = False,
) -> None:
    """Run a method and print its outputs; or what it says of a picture, a sound or a text."""
    options = LoadOptions(device, engine, precision, limits=Limits.parse(limit or []))
    if image or audio or text:
        asked = Asked(image or [], audio, text or [], context, tokenizer, top, out)
        return answer(model, asked, options, data or None, json)
    source = Source.of(model, options)
    chosen = find_method(methods_of(source), method)
    takes, gives = declared(chosen)
    signature = Signature(chosen)
    arguments = make_inputs(takes, input or [], parse_shapes(shape or [], len(takes)))
    expected = read_arrays(expect, "output", len(gives), largest(gives)) if expect else None
    if save and save.suffix not in (".npz", ".npy"):
        raise typer.BadParameter(f"{save} must end in .npz or .npy", param_hint="--save")
    check_folder(save, "--save")
    with bars(f"Loading {model.name}") as told:
        started = time.perf_counter()
        program = open_program(source.program, replace(options, progress=told), data or None, methods=[chosen.name])
        load_s = time.perf_counter() - started
    with program, progress(f"Running {chosen.name}"):
        call = program.method(chosen.name)
        results, runs_s = [], []
        for _ in range(repeat):
            program.reset()
            started = time.perf_counter()
            results = call.execute(arguments)
            runs_s.append(time.perf_counter() - started)
        adapter = program.device.info
    shown_inputs = [readable(x, value) for x, value in zip(arguments, takes)]
    outputs = [readable(y, value) for y, value in zip(results, gives)]
    if save:
        save_outputs(save, outputs)
    found = None if expected is None else [compare(y, e, atol, rtol) for y, e in zip(outputs, expected)]
    wrong = any(d.wrong for d in found or [])
    if json:
        report: dict[str, Any] = {
            "model": str(model),
            "method": chosen.name,
            "adapter": adapter.record,
            "inputs": [{"name": s.name, **summary(x)} for s, x in zip(signature.inputs, shown_inputs)],
            "outputs": [{"name": s.name, **summary(y)} for s, y in zip(signature.outputs, outputs)],
            "load_s": load_s,
            "run_s": runs_s,
        }
        if found is not None:
            differences = [asdict(d) | {"error": d.error} for d in found]
            report["expect"] = {"file": str(expect), "equal": not wrong, "outputs": differences}
        print_json(report)
    else:
        say((model.name, "bold"), f" · {chosen.name} on {adapter.place}")
        _show_arrays([*zip(signature.inputs, shown_inputs), *zip(signature.outputs, outputs)])
        say(f"load {duration(load_s)} · run {_timings(runs_s)}")
        if save:
            say(f"saved {save}")
        if found is not None:
            _show_differences(found, str(expect), atol, rtol)
    if wrong:
        raise typer.Exit(MISMATCH)


def save_outputs(path: Path, outputs: list[Any]) -> None:
    """Outputs that are numbers or arrays: `output0`, `output1`, … of an .npz, or the only one as .npy."""
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


def _show_arrays(values: list[tuple[Spec, Any]]) -> None:
    rows = []
    for spec, value in values:
        found = summary(value)
        shape = "" if found["shape"] is None else dims(found["shape"])
        figures = ["" if found.get(name) is None else number(found[name]) for name in ("min", "mean", "max")]
        rows.append([spec.name, found["dtype"], shape, *figures, values_text(value)])
    show_table("", ["", "dtype", "shape", "min", "mean", "max", "first values"], rows, right=(3, 4, 5))


def _timings(runs_s: list[float]) -> str:
    first, rest = duration(runs_s[0]), runs_s[1:]
    if not rest:
        return first
    return f"first {first}, then median {duration(statistics.median(rest))}, best {duration(min(rest))} of {len(rest)}"


def _show_differences(found: list[Difference], expected: str, atol: float | None, rtol: float) -> None:
    allowed = f"atol {f'{SCALE:g} of the largest value' if atol is None else f'{atol:g}'}, rtol {rtol:g}"
    if not any(d.wrong for d in found):
        worst = max((d.error for d in found), default=0.0)
        say(("equal", "bold green"), f" to {expected} (worst difference {number(worst)}, {allowed})")
        return
    rows = []
    for k, d in enumerate(found):
        where = d.problem or (str(list(d.index)) if d.total else "")
        values = ["", "", ""] if d.problem or not d.total else [f"{d.got:.7g}", f"{d.expected:.7g}", number(d.error)]
        rows.append([f"output {k}", f"{d.wrong:,} of {d.total:,}", where, *values])
    say(("unequal", "bold red"), f" to {expected} ({allowed})")
    show_table("", ["", "wrong", "worst at", "got", "expected", "difference"], rows, right=(1, 3, 4, 5))
