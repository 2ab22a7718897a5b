"""Save operator cases and whole models with PyTorch's results to a file; run such a file anywhere.

    python -m tools.saved make cases.zip [--only softmax]     # needs PyTorch and ExecuTorch
    python -m tools.saved run cases.zip [--only softmax]      # needs neither
    python -m tools.saved make tests/data/few.zip --few       # what `make test-quick` runs

`run` opens the adapter four times, with f16 and subgroups on and off, and holds everything to the saved results.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tests import saved
from tests.cases import Problem, tables
from tests.changes import change_all

from ptegpu.gpu.device import open_device

FEW = typer.Option(False, "--few", help="a small case of each operator, and few models")
ONLY = typer.Option("", help="only what has this in its name")
app = typer.Typer(add_completion=False, help=__doc__)


@dataclass
class Run:
    """What came of one way to open the adapter."""

    f16: bool
    subgroups: bool
    cases: int = 0
    programs: int = 0
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)


@app.command()
def make(file: Path, only: str = ONLY, few: bool = FEW) -> None:
    """Compute PyTorch's results and export the models."""
    from tests import programs as models
    from tests.oracle import problem

    console = Console(stderr=True)
    cases = [case for case in tables() if only in str(case)]
    names = [name for name in (models.FEW if few else models.PROGRAMS) if only in name]
    problems = [problem(c) for c in track(cases, "cases", console=console, disable=not console.is_terminal)]
    if few:
        problems = smallest(problems)
    programs = [models.program(n) for n in track(names, "programs", console=console, disable=not console.is_terminal)]
    saved.save(file, problems, programs)
    print(f"{file}: {len(problems)} cases, {len(programs)} programs, {file.stat().st_size / 1e6:.1f} MB")


def smallest(problems: Iterable[Problem]) -> list[Problem]:
    """One of each operator: of those that refuse the most changes of their results, the one with the fewest bytes."""
    best: dict[str, tuple[tuple[float, int], Problem]] = {}
    for p in problems:
        same = change_all(p.right, p.compare).unchanged.total()
        rank = same / len(p.golden), sum(a.nbytes for a in (*p.arrays.values(), *p.golden))
        if p.case.op not in best or rank < best[p.case.op][0]:
            best[p.case.op] = rank, p
    return [p for _, p in best.values()]


@app.command()
def run(
    file: Path = typer.Argument(exists=True, dir_okay=False),
    only: str = ONLY,
    device: str = typer.Option("auto", help="which adapter"),
    as_json: bool = typer.Option(False, "--json", help="print results as JSON"),
) -> None:
    """Run everything in a file on a GPU, four times; exits with 1 if anything is wrong."""
    console = Console(stderr=True)
    try:
        problems, programs = saved.read(file)
    except (BadZipFile, KeyError) as e:
        raise typer.BadParameter(f"{file} is not a file that 'make' wrote: {e}") from None
    work = {name: p.check for name, p in problems.items() if only in name}
    cases = len(work)
    work |= {f"program {name}": p.check for name, p in programs.items() if only in name}
    if not work:
        raise typer.BadParameter(f"nothing in {file} has '{only}' in its name")
    runs = []
    for f16, subgroups in itertools.product((True, False), repeat=2):
        gpu = open_device(device, f16=f16, subgroups=subgroups)
        done = Run(gpu.target.f16, bool(gpu.target.subgroups), cases, len(work) - cases)
        start = time.perf_counter()
        what = f"f16 {'on' if f16 else 'off'}, subgroups {'on' if subgroups else 'off'}"
        for name, check in track(work.items(), what, console=console, disable=not console.is_terminal):
            try:
                check(gpu)
            except Exception as e:  # whatever it is, the next one shall still run
                done.failures[name] = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
        done.seconds = round(time.perf_counter() - start, 1)
        runs.append(done)
    if as_json:
        print(json.dumps({"device": gpu.target.name, "runs": [asdict(r) for r in runs]}))
    else:
        show(gpu.target.name, runs)
    sys.exit(1 if any(r.failures for r in runs) else 0)


def show(name: str, runs: list[Run]) -> None:
    console = Console()
    table = Table("f16", "subgroups", "cases", "programs", "failed", "seconds", title=name)
    for r in runs:
        used = ("on" if r.f16 else "off", "on" if r.subgroups else "off")
        table.add_row(*used, *map(str, (r.cases, r.programs, len(r.failures), r.seconds)))
    console.print(table)
    for r in runs:
        for what, message in r.failures.items():
            how = f"f16 {'on' if r.f16 else 'off'}, subgroups {'on' if r.subgroups else 'off'}: "
            console.print(f"{how}{what}: {message}", markup=False, soft_wrap=True, highlight=False)


if __name__ == "__main__":
    app()
