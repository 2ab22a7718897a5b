"""Run ExecuTorch's own catalogue of WebGPU operator cases against ptegpu.

    python -m tools.upstream [--suite add --suite conv2d] [--cache DIR] [--json]
    python -m tools.upstream --cached       # on a machine without PyTorch and ExecuTorch: what the cache folder has

The cases come from the installed wheel (`executorch.backends.webgpu.test.op_tests`): modules, inputs, and PyTorch
results in float64. Exported programs are kept in the cache folder, so that a second run only runs. A case passes if
every element is within its absolute or its relative tolerance, and ints and bools are equal.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ptegpu import PtegpuError, UnsupportedProgram, load

DTYPES = {"float32": "<f4", "int32": "<i4", "int64": "<i8", "int8": "i1", "bool": "?"}


def catalogue() -> Any:
    from tests.exporting import quiet

    with quiet():
        from executorch.backends.webgpu.test.op_tests import cases  # noqa: F401
        from executorch.backends.webgpu.test.op_tests.test_suite import op_test_registry
    return op_test_registry


def generate(op: str, suite: Any, case: Any, folder: Path) -> list[dict[str, Any]]:
    """The case's program, inputs and golden results as files; its manifest entries, one per output."""
    from executorch.backends.webgpu.test.op_tests.generate_op_tests import generate_case
    from tests.exporting import cache_patterns, quiet

    manifest = folder / f"{op}__{case.name or 'case'}.json"
    if manifest.exists():
        return json.loads(manifest.read_text())
    cache_patterns()
    with quiet():
        entries = generate_case(op, suite, case, str(folder))
    manifest.write_text(json.dumps(entries))
    return entries


def read(folder: Path, entry: dict[str, Any]) -> np.ndarray:
    return np.fromfile(folder / entry["path"], DTYPES[entry["dtype"]]).reshape(entry["shape"])


def run(folder: Path, entries: list[dict[str, Any]], device: str) -> str:
    """ "" if every output is right, else what is wrong."""
    first = entries[0]
    with load(folder / first["pte"], device=device) as program:
        outputs = program.method("forward").execute([read(folder, i) for i in first["inputs"]])
    for entry in entries:
        got, want = outputs[entry["golden"]["output_index"]], read(folder, entry["golden"])
        if got.shape != want.shape:
            return f"shape {got.shape}, golden {want.shape}"
        if got.dtype.kind != "f":
            if not np.array_equal(got, want.astype(got.dtype)):
                return f"{np.count_nonzero(got != want)} of {want.size} elements differ"
            continue
        error = np.abs(got.astype(np.float64) - want)
        with np.errstate(divide="ignore", invalid="ignore"):
            bad = ~((error <= entry["atol"]) | (error / np.abs(want) <= entry["rtol"]))
        if bad.any():
            return f"{bad.sum()} of {want.size} elements off, at most by {np.nanmax(error):.3g}"
    return ""


Chosen = tuple[str, str, Callable[[], list[dict[str, Any]]]]  # suite, case, and how to get its entries


def in_catalogue(folder: Path, suites: list[str], heavy: bool) -> Iterator[Chosen]:
    registry = catalogue()
    folder.mkdir(parents=True, exist_ok=True)
    for op in suites or registry:
        for case in registry[op].cases:
            if heavy or not case.heavy:
                yield op, case.name or "case", partial(generate, op, registry[op], case, folder)


def in_cache(folder: Path, suites: list[str]) -> Iterator[Chosen]:
    for manifest in sorted(folder.glob("*.json")):
        op, case = manifest.stem.split("__", 1)
        if not suites or op in suites:
            yield op, case, partial(json.loads, manifest.read_text())


def main(
    suite: list[str] = typer.Option([], help="only these suites"),
    cache: Path = typer.Option(Path(".upstream"), help="where exported cases are kept"),
    device: str = typer.Option("auto", help="which adapter"),
    heavy: bool = typer.Option(False, help="also the cases marked heavy"),
    cached: bool = typer.Option(False, help="only what the cache folder has: needs no exporter"),
    as_json: bool = typer.Option(False, "--json", help="print results as JSON"),
) -> None:
    console = Console(stderr=True)
    chosen = list(in_cache(cache, suite) if cached else in_catalogue(cache, suite, heavy))
    if not chosen:
        raise typer.BadParameter(f"{cache} has no such cases" if cached else "the catalogue has no such cases")
    results: dict[str, Counter[str]] = {}
    problems: list[tuple[str, str, str]] = []
    for op, case, entries in track(chosen, "cases", console=console, disable=not console.is_terminal):
        name = f"{op}/{case}"
        counts = results.setdefault(op, Counter())
        try:
            problem = run(cache, entries(), device)
            outcome = "failed" if problem else "passed"
        except UnsupportedProgram as e:
            outcome, problem = "unsupported", str(e).splitlines()[-1].strip()
        except (PtegpuError, Exception) as e:
            outcome, problem = "failed", f"{type(e).__name__}: {e}"
        counts[outcome] += 1
        if problem:
            problems.append((name, outcome, problem))
    total = sum(results.values(), Counter())
    if as_json:
        print(json.dumps({"suites": results, "total": total, "problems": problems}))
    else:
        show(results, total, problems)
    sys.exit(0 if not total["failed"] else 1)


def show(results: dict[str, Counter[str]], total: Counter[str], problems: list[tuple[str, str, str]]) -> None:
    console = Console()
    table = Table("suite", "passed", "failed", "unsupported")
    for op, counts in results.items():
        table.add_row(op, *(str(counts[k] or "") for k in ("passed", "failed", "unsupported")))
    table.add_section()
    table.add_row("all", *(str(total[k]) for k in ("passed", "failed", "unsupported")))
    console.print(table)
    for name, outcome, problem in problems:
        console.print(f"{outcome} [bold]{name}[/]: ", end="")
        console.print(problem, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
