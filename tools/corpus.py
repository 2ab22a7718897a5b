"""Run the corpus of small programs and count them by feature; or extend it.

    python -m tools.corpus [--only cond] [--json]     # needs no PyTorch
    python -m tools.corpus make [--only cond] [--again]   # exports missing programs; with --again, all

Each program runs from its `.pte`, and from a bundle that is compiled, saved and loaded again.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tests import saved
from tests.replay import ARCHIVE, features_of, run_bundle, run_file

ONLY = typer.Option("", help="only programs with this in their names")
app = typer.Typer(add_completion=False, help=__doc__)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context, only: str = ONLY, as_json: bool = typer.Option(False, "--json", help="print JSON")
) -> None:
    """Run all programs on the GPU and count by feature; exits with 1 if one fails."""
    if context.invoked_subcommand:
        return
    from tests.cases import device

    programs = {name: p for name, p in saved.read(ARCHIVE)[1].items() if only in name}
    console, start, failures = Console(stderr=True), time.perf_counter(), {}
    for name, p in track(programs.items(), "programs", console=console, disable=not console.is_terminal):
        for way, check in (("file", run_file), ("bundle", run_bundle)):
            try:
                check(p, device())
            except Exception as e:  # of any type; the next program must still run
                failures[name, way] = f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
    seconds = round(time.perf_counter() - start, 1)
    counts: dict[str, Counter[str]] = {}
    for name, p in programs.items():
        for feature in ("all", *features_of(p)):
            kinds = counts.setdefault(feature, Counter())
            kinds["programs"] += 1
            kinds["calls"] += len(p.calls)
            for way in ("file", "bundle"):
                kinds[way] += (name, way) not in failures
    if as_json:
        shown = {f"{name}, {way}": message for (name, way), message in failures.items()}
        print(json.dumps({"seconds": seconds, "features": counts, "failures": shown}))
    else:
        columns = ("programs", "calls", "file", "bundle")
        table = Table("feature", *columns, title=f"{ARCHIVE.stat().st_size / 1e6:.1f} MB, {seconds} s")
        for feature, kinds in counts.items():
            table.add_row(feature, *(str(kinds[c]) for c in columns))
        Console().print(table)
        for (name, way), message in failures.items():
            print(f"{name}, {way}: {message}")
    sys.exit(1 if failures else 0)


@app.command()
def make(
    only: str = ONLY,
    again: bool = typer.Option(False, "--again", help="also export programs that the archive has"),
    file: Path = typer.Option(ARCHIVE, help="the archive"),
) -> None:
    """Export missing programs with PyTorch's results, and drop those that are in no table."""
    from tests.corpus import TABLES, programs

    archived = saved.read(file)[1] if file.exists() else {}
    collected: dict[str, saved.Program] = {}
    failures = 0
    for feature, table in TABLES.items():
        for name, entry in table.items():
            names = [name, f"{name}, undelegated"][not entry.delegate :]
            if all(n in archived for n in names) and not (again and only in name):
                exported = [archived[n] for n in names]
            elif only in name:
                try:
                    exported = programs(name, entry, feature)
                except Exception as e:  # of any type; the next program must still be exported
                    print(f"{name}: {type(e).__name__}: {' '.join(str(e).split())[:400]}", flush=True)
                    failures += 1
                    continue
                print(f"{name}: {sum(len(p.data) for p in exported):,} bytes", file=sys.stderr, flush=True)
            else:
                continue
            collected |= {p.name: p for p in exported}
    saved.save(file, [], collected.values())
    print(f"{file}: {len(collected)} programs, {file.stat().st_size / 1e6:.2f} MB, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    app()
