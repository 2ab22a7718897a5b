"""`ptegpu profile`: GPU time per kernel, operator or dispatch, compared with what the adapter can do."""

from __future__ import annotations

import json as json_text
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..files import naming
from ..limits import Limits
from ..models.door import Source
from ..runtime import LoadOptions, open_program
from ..units import counted, duration, number, size
from .console import bars, explain, print_json, progress, say, show_table
from .inputs import make_inputs, parse_shapes
from .options import AsJson, Data, DeviceName, Engine, Inputs, LimitNames, MethodName, Model, Precision, Shapes
from .values import check_folder, declared, find_method, methods_of

if TYPE_CHECKING:  # needs wgpu, which only running takes
    from ..runtime.call_timeline import Step
    from ..runtime.profile import Profile, Row


class By(StrEnum):
    KERNEL = "kernel"
    OPERATOR = "operator"
    DISPATCH = "dispatch"


def profile(
    model: Model,
    method: MethodName = None,
    data: Data = None,
    input: Inputs = None,
    shape: Shapes = None,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    limit: LimitNames = None,
    repeat: Annotated[int, typer.Option(help="How many calls to time; times are medians.", min=1)] = 10,
    by: Annotated[By, typer.Option(help="What each row of the table stands for.")] = By.KERNEL,
    json: AsJson = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write kernels and steps with their times to FILE.json, for ui.perfetto.dev.")
    ] = None,
) -> None:
    """Show where the time of a method goes. Its state is reset before every call."""
    check_folder(trace, "--trace")
    options = LoadOptions(device, engine, precision, limits=Limits.parse(limit or []))
    source = Source.of(model, options)
    chosen = find_method(methods_of(source), method)
    takes, _ = declared(chosen)
    arguments = make_inputs(takes, input or [], parse_shapes(shape or [], len(takes)))
    with bars(f"Loading {model.name}") as told:
        program = open_program(source.program, replace(options, progress=told), data or None, methods=[chosen.name])
    with program, progress(f"Profiling {chosen.name}"):
        found = program.method(chosen.name).profile(*arguments, repeats=repeat)
    if trace:
        with naming(trace):
            trace.write_text(json_text.dumps(found.trace()), "utf-8")
    if json:
        print_json({"model": str(model), **report(found, by), "trace": str(trace) if trace else None})
    else:
        show(found, by, model.name)
        if trace:
            say(f"saved {trace}: open it at https://ui.perfetto.dev")


def report(found: Profile, by: By) -> dict[str, Any]:
    """The profile as JSON, with the adapter and the note on what profiling costs."""
    return {"adapter": found.adapter.record, **found.to_json(by.value), "note": note(found)}


def show(found: Profile, by: By, model: str) -> None:
    """The tables and the totals on stdout."""
    a, peak = found.adapter, found.ceilings
    say((model, "bold"), f" · {found.method} on {a.place}")
    most = f"{number(peak.bandwidth / 1e9)} GB/s (copies), {number(peak.flops / 1e12)} TFLOP/s (f32)"
    explain(f"medians of {counted(found.repeats, 'call')} · this adapter's measured maximum: {most}")
    second = "kernel" if by is By.DISPATCH else "count"
    columns = [by.value, second, "GPU time", "share", "each", "GB/s", "of max", "TFLOP/s", "of max"]
    rows = [_cells(row, found, by) for row in found.rows(by.value)]
    right = range(2 if by is By.DISPATCH else 1, len(columns))
    show_table("", columns, rows, right, optional=(4, 7, 8, 5, 6))
    say(
        f"dispatches {len(found.kernels):,} · kernels {duration(found.kernel_seconds)} · "
        f"single pass {duration(found.pass_seconds)} · wall {duration(found.wall_seconds)} · "
        f"host {duration(found.host_seconds)}"
    )
    explain(note(found))
    _show_steps(found)


def note(found: Profile) -> str:
    """That profiling splits passes, and what that costs."""
    extra, single = found.split_seconds, found.pass_seconds
    costs = f"{duration(extra)} ({_percent(extra, single)})" if extra > 0 else "nothing measurable"
    return (
        "Profiling gives each kernel a pass of its own, ordinary calls run all in one: the kernels add up to "
        f"{duration(found.kernel_seconds)}, the single pass takes {duration(single)}, so splitting costs {costs}."
    )


def _show_steps(found: Profile) -> None:
    """A call from its arguments to its results: what each step takes, and what of it is traffic, waiting, the host."""
    from ..runtime.call_timeline import by_name, together

    total = together(found.steps, "sum")
    columns = ["step of a call", "count", "time", "share", "upload", "wait", "read back", "host"]
    rows = [_step_cells(step, total.seconds) for step in (*by_name(found.steps), total)]
    show_table("", columns, rows, range(1, len(columns)), optional=(3, 1))
    plans, steps = (sum(step.kind == kind for step in found.steps) for kind in ("plan", "NumPy call"))
    moved = total.traffic
    say(
        f"{counted(plans, 'plan')} · {counted(steps, 'NumPy call')} · "
        f"{counted(moved.uploads, 'upload')} of {size(moved.upload_bytes)} · "
        f"{counted(moved.readbacks, 'read back')} of {size(moved.readback_bytes)}"
    )
    explain(
        f"The steps add up to {duration(total.seconds)}, an ordinary call takes {duration(found.wall_seconds)}: "
        "to time its steps, a call waits for each plan before it reads the results."
    )


def _step_cells(step: Step, total: float) -> list[str]:
    parts = (step.traffic.upload_seconds, step.waited, step.traffic.readback_seconds, step.host_seconds)
    times = ["" if seconds == 0 else duration(seconds) for seconds in parts]
    return [step.name, f"{step.count:,}", duration(step.seconds), _percent(step.seconds, total), *times]


def _cells(row: Row, found: Profile, by: By) -> list[str]:
    peak = found.ceilings
    return [
        row.name,
        row.kernel if by is By.DISPATCH else f"{row.count:,}",
        duration(row.seconds),
        _percent(row.seconds, found.kernel_seconds),
        "" if row.count == 1 else duration(row.seconds / row.count),
        *_rate(row.bytes_per_second, 1e9, peak.bandwidth),
        *_rate(row.flops_per_second, 1e12, peak.flops),
    ]


def _rate(rate: float, unit: float, most: float) -> tuple[str, str]:
    if not rate:
        return "", ""
    return f"{rate / unit:.3g}" if rate >= 1e-3 * unit else "<0.001", _percent(rate, most)


def _percent(part: float, whole: float) -> str:
    if not whole:
        return ""
    share = 100 * part / whole
    return f"{share:.3g} %" if share >= 0.1 or share <= 0 else "<0.1 %"
