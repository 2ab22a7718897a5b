"""Measure ptegpu: `python -m benchmarks [NAME ...]`. docs/benchmarks.md explains the figures.

python -m benchmarks                                   everything
python -m benchmarks decode gemm --json found.json     some workloads, also written as JSON
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
    "batches": "batches",
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
TABLE_WIDTH = 180  # without a terminal


def workload(name: str) -> Callable[[Bench], Iterator[Row]]:
    return getattr(import_module(f".{ALL[name]}", __package__), name)  # type: ignore[no-any-return]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    only = f"; only by name: {', '.join(BY_NAME_ONLY)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"workloads: {', '.join(WORKLOADS)}{only}")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="only cases whose names contain this"
    )
    parser.add_argument("--engine", choices=ENGINES, action="append", help="the engines (both)")
    parser.add_argument("--precision", choices=(*PRECISIONS, "auto"), action="append", help="(exact and fast)")
    parser.add_argument("--device", default="auto", help="as `ptegpu doctor` lists them (auto)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with the programs that `make FOLDER` wrote")
    parser.add_argument("--seconds", type=float, default=0.5, help="of warming up and of timing, each way (0.5)")
    parser.add_argument("--no-compile", action="store_true", help="without compiled PyTorch, which starts slowly")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument("--profile", action="store_true", help="show where the time goes in `calls` and `batches`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all rows there, after each workload")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in ALL]
    if unknown and options.names[0] != "make":
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(ALL)}")
    if options.names[:1] == ["make"] and len(options.names) != 2:
        parser.error("make takes a folder")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if options.names[:1] == ["make"]:
        from .programs import make

        for path in make(Path(options.names[1]), options.quick):
            console.print(f"{path}: {path.stat().st_size:,} bytes", highlight=False)
        return 0
    bench = Bench(
        quick=options.quick,
        data=options.data,
        device=options.device,
        engines=options.engine or ENGINES,
        precisions=options.precision or PRECISIONS,
        seconds=options.seconds,
        only=options.only,
        compiled=not options.no_compile,
        profile=options.profile,
        console=console,
    )
    rows: list[Row] = []
    with bench.resources:
        for line in lines(bench):
            console.print(line, highlight=False)
        for name in options.names or WORKLOADS:
            rows += run(bench, name)
            if options.json:
                save(options.json, bench, rows)
    failed = [row for row in rows if row.failure]
    for row in failed:
        console.print(f"failed: {row.workload}, {row.case}, {row.way}: {row.failure}", highlight=False, markup=False)
    return 1 if failed else 0


def run(bench: Bench, name: str) -> list[Row]:
    """Run a workload and print its table. A failure outside a row becomes a row."""
    began = time.perf_counter()
    rows: list[Row] = []
    words = ""
    try:
        function = workload(name)
        words = (function.__doc__ or "").partition("\n")[0]
        rows.extend(function(bench))
    except Missing as error:
        rows.append(Row(name, "", "", missing=str(error)))
    except Exception as error:  # the other workloads must still run
        rows.append(Row(name, "", "", failure=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    took = time.perf_counter() - began
    bench.console.print(f"\n[bold]{name}[/]: {words} ({took:.0f} s)", highlight=False, soft_wrap=True)
    bench.console.print(table(with_ratios(rows)) if rows else "no case name contains this", highlight=False)
    for line in summary(rows):
        bench.console.print(line, highlight=False)
    return rows


if __name__ == "__main__":
    sys.exit(main())
