"""`ptegpu profile`: GPU time per kernel, operator or dispatch, held against what the adapter can do."""

from __future__ import annotations

import json as json_text
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ptegpu

from ..format import read_program
from .console import duration, number, print_json, progress, say, show_table
from .inputs import make_inputs, parse_shapes
from .options import AsJson, Data, DeviceName, Inputs, MethodName, Model, Shapes
from .values import declared, find_method

if TYPE_CHECKING:  # needs wgpu, which only running takes
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
    repeat: Annotated[int, typer.Option(help="Calls of each kind; times are medians.", min=1)] = 10,
    by: Annotated[By, typer.Option(help="What a row of the table is.")] = By.KERNEL,
    json: AsJson = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the kernels on a line of time to FILE.json, for ui.perfetto.dev.")
    ] = None,
) -> None:
    """Show where the time of a method goes. Its state is reset before every call."""
    chosen = find_method(read_program(model), method)
    takes, _ = declared(chosen)
    arguments = make_inputs(takes, input or [], parse_shapes(shape or [], len(takes)))
    with progress(f"Loading {model.name}"):
        program = ptegpu.load(model, data or None, device, methods=[chosen.name])
    with program, progress(f"Profiling {chosen.name}"):
        found = program.method(chosen.name).profile(*arguments, repeats=repeat)
    if trace:
        trace.write_text(json_text.dumps(found.trace()), "utf-8")
    if json:
        print_json({"model": str(model), **report(found, by), "trace": str(trace) if trace else None})
    else:
        show(found, by, model.name)
        if trace:
            say(f"saved {trace}: open it at https://ui.perfetto.dev")


def report(found: Profile, by: By) -> dict[str, Any]:
    """The profile as JSON, with the adapter and the note on what profiling costs."""
    a = found.adapter
    adapter = {"index": a.index, "name": a.name, "type": a.type, "backend": a.backend}
    return {"adapter": adapter, **found.to_json(by.value), "note": note(found)}


def show(found: Profile, by: By, model: str) -> None:
    """The table and the totals on stdout."""
    a, peak = found.adapter, found.ceilings
    say((model, "bold"), f" · {found.method} on {a.name} ({a.type}, {a.backend})")
    most = f"{number(peak.bytes_per_second / 1e9)} GB/s copied, {number(peak.flops_per_second / 1e12)} TFLOP/s of f32"
    say(f"times are medians of {found.repeats} · at most, measured: {most}")
    second = "kernel" if by is By.DISPATCH else "count"
    columns = [by.value, second, "GPU time", "share", "µs each", "GB/s", "of max", "TFLOP/s", "of max"]
    rows = [_cells(row, found, by) for row in found.rows(by.value)]
    show_table("", columns, rows, right=range(2 if by is By.DISPATCH else 1, len(columns)))
    say(
        f"dispatches {len(found.kernels):,} · kernels {duration(found.kernel_seconds)} · "
        f"single pass {duration(found.pass_seconds)} · wall {duration(found.wall_seconds)} · "
        f"host {duration(found.host_seconds)}"
    )
    say(note(found))


def note(found: Profile) -> str:
    """That profiling splits passes, and what that costs."""
    extra, single = found.split_seconds, found.pass_seconds
    costs = f"{duration(extra)} ({_percent(extra, single)})" if extra > 0 else "nothing that can be measured"
    return (
        "Profiling gives each kernel a pass of its own, ordinary calls run all in one: the kernels add up to "
        f"{duration(found.kernel_seconds)}, the single pass takes {duration(single)}, so splitting costs {costs}."
    )


def _cells(row: Row, found: Profile, by: By) -> list[str]:
    peak = found.ceilings
    return [
        row.name,
        row.kernel if by is By.DISPATCH else f"{row.count:,}",
        duration(row.seconds),
        _percent(row.seconds, found.kernel_seconds),
        f"{row.seconds / row.count * 1e6:.3g}",
        *_rate(row.bytes_per_second, 1e9, peak.bytes_per_second),
        *_rate(row.flops_per_second, 1e12, peak.flops_per_second),
    ]


def _rate(rate: float, unit: float, most: float) -> tuple[str, str]:
    return (f"{rate / unit:.3g}", _percent(rate, most)) if rate else ("", "")


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3g} %" if whole else ""
