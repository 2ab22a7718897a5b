"""Measure ptegpu: `python -m benchmarks [NAME ...]`. docs/benchmarks.md says what the figures are.

python -m benchmarks                                   everything
python -m benchmarks decode gemm --json found.json     some workloads, also as JSON
python -m benchmarks resnet18 --only "batch 32"        some of their cases
python -m benchmarks make FOLDER                       the programs, where ExecuTorch is installed
python -m benchmarks --data FOLDER                     where the GPU is
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from .harness import ENGINES, PRECISIONS, Bench, Missing, Row, lines, save, summary, table, with_ratios

WORKLOADS = {
    "decode": "llm",
    "prefill": "llm",
    "resnet18": "networks",
    "mobilenetv2": "networks",
    "minilm": "networks",
    "gemm": "products",
    "gemv": "products",
    "start": "start",
    "record": "host",
    "calls": "host",
    "lengths": "host",
    "operators": "operators",
}
BY_NAME_ONLY = {"ways": "gemv_ways", "attention": "attention"}
ALL = WORKLOADS | BY_NAME_ONLY
TABLE_WIDTH = 180  # where there is no terminal


def workload(name: str) -> Callable[[Bench], Iterator[Row]]:
    return getattr(import_module(f".{ALL[name]}", __package__), name)  # type: ignore[no-any-return]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    only = f"; only by name: {', '.join(BY_NAME_ONLY)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"workloads: {', '.join(WORKLOADS)}{only}")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="the engines (both)")
    parser.add_argument("--precision", choices=(*PRECISIONS, "auto"), action="append", help="(exact and fast)")
    parser.add_argument("--device", default="auto", help="as `ptegpu doctor` lists them (auto)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with the programs that `make FOLDER` wrote")
    parser.add_argument("--seconds", type=float, default=0.5, help="of warming up and of timing, each way (0.5)")
    parser.add_argument("--no-compile", action="store_true", help="without compiled PyTorch, which starts slowly")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--profile", action="store_true", help="show where the host's time goes in `calls`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all rows there, after each workload")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in ALL]
    if unknown and given.names[0] != "make":
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(ALL)}")
    if given.names[:1] == ["make"] and len(given.names) != 2:
        parser.error("make takes a folder")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if given.names[:1] == ["make"]:
        from .programs import make

        for path in make(Path(given.names[1]), given.quick):
            console.print(f"{path}: {path.stat().st_size:,} bytes", highlight=False)
        return 0
    bench = Bench(
        quick=given.quick,
        data=given.data,
        device=given.device,
        engines=given.engine or ENGINES,
        precisions=given.precision or PRECISIONS,
        seconds=given.seconds,
        only=given.only,
        compiled=not given.no_compile,
        profile=given.profile,
        console=console,
    )
    rows: list[Row] = []
    with bench.kept:
        for line in lines(bench):
            console.print(line, highlight=False)
        for name in given.names or WORKLOADS:
            rows += run(bench, name)
            if given.json:
                save(given.json, bench, rows)
    failed = [row for row in rows if row.failure]
    for row in failed:
        console.print(f"failed: {row.workload}, {row.case}, {row.way}: {row.failure}", highlight=False, markup=False)
    return 1 if failed else 0


def run(bench: Bench, name: str) -> list[Row]:
    """One workload with its table; what fails outside any row is one."""
    began = time.perf_counter()
    rows: list[Row] = []
    words = ""
    try:
        function = workload(name)
        words = (function.__doc__ or "").partition("\n")[0]
        rows.extend(function(bench))
    except Missing as error:
        rows.append(Row(name, "", "", missing=str(error)))
    except Exception as error:  # the other workloads shall still run
        rows.append(Row(name, "", "", failure=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    took = time.perf_counter() - began
    bench.console.print(f"\n[bold]{name}[/]: {words} ({took:.0f} s)", highlight=False, soft_wrap=True)
    bench.console.print(table(with_ratios(rows)) if rows else "no case has this in its name", highlight=False)
    for line in summary(rows):
        bench.console.print(line, highlight=False)
    return rows


if __name__ == "__main__":
    sys.exit(main())
