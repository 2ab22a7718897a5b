"""`ptegpu profile`: GPU time per kernel, operator or dispatch, compared with the adapter's maximum."""

from __future__ import annotations

import json as json_text
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..files import naming
from ..units import counted, duration, number, size
from .console import bars, progress
from .inputs import CallFlags
from .options import LoadFlags, ModelPath
from .report import CommandReport
from .values import check_output

if TYPE_CHECKING:  # needs wgpu, which only running takes
    from ..runtime.call_timeline import CallStep
    from ..runtime.profile import Profile, ProfileRow


class By(StrEnum):
    KERNEL = "kernel"
    OPERATOR = "operator"
    DISPATCH = "dispatch"


def profile(
    model: ModelPath,
    *,
    call: CallFlags,
    repeat: Annotated[int, typer.Option(help="Number of calls to time; times are medians.", min=1)] = 10,
    by: Annotated[By, typer.Option(help="What each row of the table describes.")] = By.KERNEL,
    trace: Annotated[
        Path | None, typer.Option(help="Write kernels and steps with their times to FILE.json, for ui.perfetto.dev.")
    ] = None,
    loading: LoadFlags,
) -> CommandReport:
    """Show where the time of a method goes. Its state is reset before every call."""
    check_output(trace, "--trace")
    prepared = call.prepare(model, loading.options())
    name = prepared.method.name
    with bars(f"Loading {model.name}") as update:
        program = prepared.load(loading.options(update), call.data)
    with program, progress(f"Profiling {name}"):
        result = program.method(name).profile(*prepared.arguments, repeats=repeat)
    report = profile_report(result, by, model)
    report.record["trace"] = str(trace) if trace else None
    if trace:
        with naming(trace):
            trace.write_text(json_text.dumps(result.trace()), "utf-8")
        report.line(f"saved {trace}: open it at https://ui.perfetto.dev")
    return report


def profile_report(result: Profile, by: By, model: Path) -> CommandReport:
    """Return the tables and totals of a profile, and the same as JSON."""
    explanation = split_note(result)
    record = {"model": str(model), "adapter": result.adapter.record, **result.to_json(by.value), "note": explanation}
    report, peak = CommandReport(record), result.ceilings
    report.line((model.name, "bold"), f" · {result.method} on {result.adapter.place}")
    most = f"{number(peak.bandwidth / 1e9)} GB/s (copies), {number(peak.flops / 1e12)} TFLOP/s (f32)"
    report.paragraph(f"medians of {counted(result.repeats, 'call')} · this adapter's measured maximum: {most}")
    second = "kernel" if by is By.DISPATCH else "count"
    columns = [by.value, second, "GPU time", "share", "each", "GB/s", "of max", "TFLOP/s", "of max"]
    rows = [_cells(row, result, by) for row in result.rows(by.value)]
    right = range(2 if by is By.DISPATCH else 1, len(columns))
    report.table(columns, rows, right, optional=(4, 7, 8, 5, 6))
    report.line(
        f"dispatches {len(result.kernels):,} · kernels {duration(result.kernel_seconds)} · "
        f"single pass {duration(result.pass_seconds)} · wall {duration(result.wall_seconds)} · "
        f"host {duration(result.host_seconds)}"
    )
    report.paragraph(explanation)
    _add_steps(report, result)
    return report


def split_note(result: Profile) -> str:
    """Explain that profiling splits the compute pass, and what that costs."""
    extra, single = result.split_seconds, result.pass_seconds
    costs = f"{duration(extra)} ({_percent(extra, single)})" if extra > 0 else "nothing measurable"
    return (
        "Profiling gives each kernel a pass of its own, ordinary calls run all in one: the kernels add up to "
        f"{duration(result.kernel_seconds)}, the single pass takes {duration(single)}, so splitting costs {costs}."
    )


def _add_steps(report: CommandReport, result: Profile) -> None:
    """Add a table of the steps of a call, from its arguments to its results: traffic, waiting, host time."""
    from ..runtime.call_timeline import by_name, summed

    total = summed(result.steps, "sum")
    columns = ["step of a call", "count", "time", "share", "upload", "wait", "read back", "host"]
    rows = [_step_cells(step, total.seconds) for step in (*by_name(result.steps), total)]
    report.table(columns, rows, range(1, len(columns)), optional=(3, 1))
    plans, steps = (sum(step.kind == kind for step in result.steps) for kind in ("plan", "NumPy call"))
    moved = total.traffic
    report.line(
        f"{counted(plans, 'plan')} · {counted(steps, 'NumPy call')} · "
        f"{counted(moved.uploads, 'upload')} of {size(moved.upload_bytes)} · "
        f"{counted(moved.readbacks, 'read back')} of {size(moved.readback_bytes)}"
    )
    report.paragraph(
        f"The steps add up to {duration(total.seconds)}, an ordinary call takes {duration(result.wall_seconds)}: "
        "to time its steps, a call waits for each plan before it reads the results."
    )


def _step_cells(step: CallStep, total: float) -> list[str]:
    parts = (step.traffic.upload_seconds, step.waited, step.traffic.readback_seconds, step.host_seconds)
    times = ["" if seconds == 0 else duration(seconds) for seconds in parts]
    return [step.name, f"{step.count:,}", duration(step.seconds), _percent(step.seconds, total), *times]


def _cells(row: ProfileRow, result: Profile, by: By) -> list[str]:
    peak = result.ceilings
    return [
        row.name,
        row.kernel if by is By.DISPATCH else f"{row.count:,}",
        duration(row.seconds),
        _percent(row.seconds, result.kernel_seconds),
        "" if row.count == 1 else duration(row.seconds / row.count),
        *_rate(row.bytes_per_second, 1e9, peak.bandwidth),
        *_rate(row.flops_per_second, 1e12, peak.flops),
    ]


def _rate(rate: float, unit: float, most: float) -> tuple[str, str]:
    if not rate:
        return "", ""
    return f"{rate / unit:.3g}" if rate >= 1e-3 * unit else "<0.001", _percent(rate, most)


def _percent(part: float, total: float) -> str:
    if not total:
        return ""
    share = 100 * part / total
    return f"{share:.3g} %" if share >= 0.1 or share <= 0 else "<0.1 %"
