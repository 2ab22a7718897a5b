"""Save operator cases and whole models with PyTorch's results to a file; run such a file anywhere.

    python -m tools.saved make cases.zip [--only softmax]     # needs PyTorch and ExecuTorch
    python -m tools.saved run cases.zip [--only softmax] [--engine dawn]      # needs neither
    python -m tools.saved make tests/data/few.zip --few       # what `make test-quick` runs

`run` opens the adapter with every combination of f16, subgroups and matrices that it supports, and compares everything
with the saved results. `--f16 on` (or off), `--subgroups` and `--matrices` fix one of them.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tests import saved
from tests.cases import Problem, tables
from tests.changes import change_all

from ptegpu.gpu.device import open_device

Switch = Literal["on", "off", "both"]
SWITCHES: dict[Switch, tuple[bool, ...]] = {"on": (True,), "off": (False,), "both": (True, False)}
FEW = typer.Option(False, "--few", help="a small case of each operator, and few models")
ONLY = typer.Option("", help="only names that contain this")
app = typer.Typer(add_completion=False, help=__doc__)


@dataclass
class Run:
    """The results of one way to open the adapter."""

    engine: str
    precision: str
    f16: bool
    subgroups: bool
    matrices: bool
    cases: int = 0
    programs: int = 0
    seconds: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def way(self) -> str:
        """Return the engine and the features of the adapter."""
        switches = (f"{name} {'on' if getattr(self, name) else 'off'}" for name in ("f16", "subgroups", "matrices"))
        return f"{self.engine}, {', '.join(switches)}"


@app.command()
def make(file: Path, only: str = ONLY, small: bool = FEW) -> None:
    """Compute PyTorch's results and export the models."""
    from tests import programs as models
    from tests.oracle import problem

    console = Console(stderr=True)
    cases = [case for case in tables() if only in str(case)]
    names = [name for name in (models.FEW if small else models.PROGRAMS) if only in name]
    problems = [problem(c) for c in track(cases, "cases", console=console, disable=not console.is_terminal)]
    if small:
        problems = smallest(problems)
    programs = [models.program(n) for n in track(names, "programs", console=console, disable=not console.is_terminal)]
    saved.save(file, problems, programs)
    print(f"{file}: {len(problems)} cases, {len(programs)} programs, {file.stat().st_size / 1e6:.1f} MB")


def smallest(problems: Iterable[Problem]) -> list[Problem]:
    """Return one problem per operator: the one that detects most changes of its results, and of these the smallest."""
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
    engine: Literal["auto", "wgpu", "dawn"] = typer.Option("auto", help="which engine"),
    precision: Literal["auto", "exact", "fast"] = typer.Option("auto", help="of products"),
    f16: Switch = typer.Option("both", help="whether the adapter has it"),
    subgroups: Switch = typer.Option("both", help="whether the adapter has them"),
    matrices: Switch = typer.Option("both", help="whether the adapter has them"),
    as_json: bool = typer.Option(False, "--json", help="print results as JSON"),
) -> None:
    """Run everything in a file on a GPU, once for each way to open it. Exit with 1 on any failure."""
    console = Console(stderr=True)
    try:
        problems, programs = saved.read(file)
    except (BadZipFile, KeyError) as e:
        raise typer.BadParameter(f"{file} is not a file that 'make' wrote: {e}") from None
    work: dict[str, Callable[..., None]] = {name: p.check for name, p in problems.items() if only in name}
    cases = len(work)
    work |= {f"program {name}": p.check for name, p in programs.items() if only in name}
    if not work:
        raise typer.BadParameter(f"nothing in {file} has '{only}' in its name")
    runs = []
    ways = {}
    for settings in itertools.product(*(SWITCHES[switch] for switch in (f16, subgroups, matrices))):
        gpu = open_device(device, engine=engine, **dict(zip(("f16", "subgroups", "matrices"), settings)))
        ways.setdefault((gpu.target.f16, gpu.target.subgroups, bool(gpu.target.matrices)), gpu)
    for way, gpu in ways.items():
        done = Run(gpu.info.engine, precision, *way, cases, len(work) - cases)
        start = time.perf_counter()
        for name, check in track(work.items(), done.way, console=console, disable=not console.is_terminal):
            try:
                check(gpu, precision=precision)
            except Exception as e:  # of any type; the next one must still run
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
    table = Table("way", "precision", "cases", "programs", "failed", "seconds", title=name)
    for r in runs:
        table.add_row(r.way, r.precision, *map(str, (r.cases, r.programs, len(r.failures), r.seconds)))
    console.print(table)
    for r in runs:
        for what, message in r.failures.items():
            console.print(f"{r.way}: {what}: {message}", markup=False, soft_wrap=True, highlight=False)


if __name__ == "__main__":
    app()
