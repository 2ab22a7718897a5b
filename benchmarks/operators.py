"""Every operator with a case at a real size: its time on the GPU, what it moves and computes, and PyTorch's time.

    python -m benchmarks.operators [--only softmax --only mm.default] [--repeats 10] [--json]

The cases are the `BENCHMARKS` of the tables in `tests/ops`. GPU time by timestamps around the pass of an ordinary run,
clocks warm, the median. Where PyTorch has a CUDA device, the case's reference runs there on the same values, and the
results are compared. Where PyTorch has the same operator, or the case names a peer, that is timed too (float32 without
TF32): the ratio is PyTorch's time by ours, so above 1 is faster than PyTorch. PyTorch's time is that of one of many
calls in a row, which hides its launches where the GPU is the slower side.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table
from tests.cases import Case, S, T, compare, given, graph_of, plan_of, sizes_of, tables, walk
from tests.oracle import call, reference, torch_operator

from ptegpu.gpu import Device, Session, open_device
from ptegpu.gpu.loads import warm
from ptegpu.gpu.measurement import measure as measure_class
from ptegpu.gpu.timer import Timer
from ptegpu.plan.resolve import evaluated

ROUNDS = 5  # of PyTorch, each of as many calls as there are repeats
TOLERANCE = {"f": 1e-3, "e": 1e-2}  # by the kind of float; of the largest magnitude


@dataclass(frozen=True)
class Result:
    case: str
    seconds: float
    nbytes: int
    flops: int
    dispatches: int
    torch_seconds: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.torch_seconds / self.seconds if self.torch_seconds else None


def on_cuda(case: Case, arrays: dict[int, np.ndarray]) -> list[Any]:
    """The case's arguments on PyTorch's device."""

    def value(a: Any) -> Any:
        if isinstance(a, T):
            t = torch.from_numpy(arrays[id(a)]).cuda()
            return t.long() if t.dtype == torch.int32 else t
        return a.value if isinstance(a, S) else a

    return walk(list(case.args), value)


def operator(case: Case) -> Callable[..., Any]:
    found = torch_operator(case.op)
    return lambda *args: call(found, args)


def timed_torch(function: Callable[..., Any], args: list[Any], repeats: int) -> float:
    """Seconds of one call on the CUDA device."""
    function(*args)
    rounds = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            function(*args)
        end.record()
        torch.cuda.synchronize()
        rounds.append(begin.elapsed_time(end) / 1e3 / repeats)
    return median(rounds)


def results(function: Callable[..., Any], args: list[Any]) -> list[np.ndarray]:
    result = function(*args)
    outs = list(result) if isinstance(result, tuple | list) else [result]
    return [o.detach().cpu().contiguous().numpy() for o in outs]


def measure(case: Case, device: Device, repeats: int) -> Result:
    """Run a case, compare it where PyTorch has the same device, and time both."""
    rng = np.random.default_rng(0)
    arrays: dict[int, np.ndarray] = {}
    walk(list(case.args), lambda a: arrays.update({id(a): a.make(rng)}) if isinstance(a, T) else None)
    seconds = None
    if torch.cuda.is_available():
        args = on_cuda(case, arrays)
        wanted = results(case.reference or operator(case), args)
        if case.peer or not case.reference:
            seconds = timed_torch(case.peer or operator(case), args, repeats)
        del args
        torch.cuda.empty_cache()
    else:
        found = reference(case, arrays, wide=False)
        wanted = found[: len(found) - len(case.mutated)]
    graph, made = graph_of(case, arrays, [*wanted, *(arrays[id(case.args[k])] for k in case.mutated)])
    inputs = given(graph, case, made)
    plan = plan_of(graph, device.target, inputs)
    with Session(device) as session:
        prepared = session.prepare(plan)
        for got, want in zip(session.run(prepared, inputs), wanted):
            if got.dtype.kind == "f":
                scale = float(np.abs(want).max()) or 1.0
                compare(got / scale, want / scale, case.atol or TOLERANCE[got.dtype.char], str(case))
        warm(device)
        timer = Timer(device, each=False)
        with timer.watching([session]):
            for _ in range(repeats + 1):
                session.run(prepared, inputs, read=[])
    passes = [sum(end - begin for begin, end in run.spans) for run in timer.runs[1:]]
    ran = [d for d in evaluated(plan, *sizes_of(inputs)).dispatches if 0 not in d.grid]
    nbytes, flops = sum(d.nbytes for d in ran), sum(d.flops for d in ran)
    return Result(str(case), median(passes), nbytes, flops, len(ran), seconds)


def main(
    only: list[str] = typer.Option([], help="only cases with this, or one of these, in their name"),
    repeats: int = typer.Option(10, help="runs of each"),
    device: str = typer.Option("auto", help="which adapter"),
    as_json: bool = typer.Option(False, "--json", help="print results as JSON"),
) -> None:
    torch.backends.cudnn.allow_tf32 = False
    console = Console(stderr=True)
    gpu = open_device(device)
    peak = measure_class(gpu)
    cases = [c for c in tables("BENCHMARKS") if not only or any(o in str(c) for o in only)]
    results, failures = [], {}
    for case in track(cases, "cases", console=console, disable=not console.is_terminal):
        try:
            results.append(measure(case, gpu, repeats))
        except Exception as e:  # whatever it is, the next one shall still run
            failures[str(case)] = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
    if as_json:
        made = [asdict(r) | {"ratio": r.ratio} for r in results]
        print(json.dumps({"device": gpu.target.name, "ceilings": asdict(peak), "results": made, "failures": failures}))
        return
    table = Table(
        Column("case", overflow="fold"),
        "µs",
        "GB/s",
        "of copy",
        "TFLOP/s",
        "PyTorch µs",
        "ratio",
        title=gpu.target.name,
    )
    for r in results:
        rate = r.nbytes / r.seconds
        table.add_row(
            r.case,
            f"{r.seconds * 1e6:.1f}",
            f"{rate / 1e9:.0f}",
            f"{rate / peak.bandwidth:.0%}",
            f"{r.flops / r.seconds / 1e12:.2f}" if r.flops else "",
            f"{r.torch_seconds * 1e6:.1f}" if r.torch_seconds else "",
            f"{r.ratio:.2f}" if r.ratio else "",
        )
    Console(width=None if console.is_terminal else 140).print(table)
    ratios = [r.ratio for r in results if r.ratio]
    if ratios:
        print(f"PyTorch's time by ours, geometric mean over {len(ratios)} cases: {geometric_mean(ratios):.2f}")
    for name, message in failures.items():
        print(f"failed: {name}: {message}")


if __name__ == "__main__":
    typer.run(main)
