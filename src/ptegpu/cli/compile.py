"""`ptegpu compile`: a program as a bundle, which loads without planning anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

import ptegpu

from ..errors import InvalidInput
from ..explain.analysis import memory_bytes
from ..explain.guards import numpy_calls
from ..models.door import ProgramSource
from ..models.text.compiling import ServeSizes
from ..plan import Bundle, Target
from ..units import counted, duration
from ..units import size as size_text
from .console import bar
from .inputs import parse_sizes
from .options import CacheType, DataFiles, EngineName, PersistentMode, PlannedSizes, PrecisionName
from .report import CommandReport
from .values import check_output, find_method

BROWSER, THIS = "browser", "this"


def compile_program(
    model: Annotated[Path, typer.Argument(help="The program, a .pte file.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The bundle to write.", show_default=False)],
    data: DataFiles = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Compile only this method; repeat for more.", show_default="all")
    ] = None,
    size: PlannedSizes = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="browser (the limits that every browser grants), this (the adapter here), or another adapter's index "
            "or part of its name. Repeat for a bundle with plans for several; loading uses the first that fits.",
            show_default=BROWSER,
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Add the plans of `ptegpu serve`: a language model for many requests at once."),
    ] = False,
    sequences: Annotated[
        int, typer.Option(help="With --serve: the most requests that run at once.", min=1)
    ] = ServeSizes().sequences,
    memory: Annotated[
        float, typer.Option(help="With --serve: GiB for the key-value cache, at most.", min=0)
    ] = ServeSizes().memory / 2**30,
    engine: EngineName = "auto",
    precision: PrecisionName = "auto",
    cache: CacheType = "f32",
    persistent: PersistentMode = "auto",
) -> CommandReport:
    """Compile a program to a bundle, which all other commands take. Needs a GPU only for its own targets."""
    check_output(output, "--output")
    sizes = parse_sizes(size or [])
    source = ProgramSource.of(model)
    if source.bundle is not None:
        raise InvalidInput(f"{model} is a bundle already")
    if output.exists() and output.samefile(model):
        raise InvalidInput(f"--output {output} is the program itself; name another file")
    for name in method or []:
        find_method(source, name)
    if persistent != "auto" and set(target or [BROWSER]) == {BROWSER}:
        raise InvalidInput(f"--persistent {persistent} has no effect in browsers: add --target this")
    targets = [_target(name, engine, persistent) for name in target or [BROWSER]]
    started = time.perf_counter()
    with bar(f"Compiling {model.name}") as step:
        bundle = ptegpu.compile(
            source,
            data or None,
            targets,
            sizes=sizes or None,
            methods=method or None,
            many=ServeSizes(sequences, int(memory * 2**30)) if serve else None,
            precision=precision,
            progress=lambda name, done, total: step(done, total, name),
            cache=cache,
        )
        bundle.save(output)
    seconds, nbytes = time.perf_counter() - started, output.stat().st_size
    methods = bundle_methods(bundle)
    names = [t.name for t in targets]
    record = {"model": str(model), "bundle": str(output), "nbytes": nbytes, "seconds": seconds, "targets": names}
    report = CommandReport(record | {"methods": methods})
    report.line((output.name, "bold"), f" · {size_text(nbytes)}, made of {model.name} in {duration(seconds)}")
    columns = ["method", "plans", "families", "choices", "expressions", "kernels", "GPU memory", "target"]
    rows = [
        [
            *(m[name] for name in ("name", *columns[1:6])),
            size_text(m["memory"]["total"]) if m["memory"] else "",
            m["target"] if len(targets) > 1 else "",
        ]
        for m in methods
    ]
    report.table(columns, rows, right=range(1, 7))
    for name, calls in {m["name"]: m["numpy"] for m in methods if m["numpy"]}.items():
        operators = ", ".join(f"{op} ({n})" for op, n in calls.items())
        report.paragraph(operators, f"{name} needs {counted(len(calls), 'NumPy kernel')}: ", indent=2)
    return report


def _target(name: str, engine: EngineName, persistent: PersistentMode) -> Target:
    if name == BROWSER:
        return Target()
    from ..gpu import open_device

    return open_device("auto" if name == THIS else name, engine=engine, persistent=persistent).target


def bundle_methods(bundle: Bundle) -> list[dict[str, Any]]:
    """Return the figures of each target and method of a bundle."""
    return [
        {
            "name": outer.name,
            "target": target.name,
            "plans": len(outer.plans),
            "families": sum(len(p.families) for p in outer.plans),
            "choices": sum(len(choices) for p in outer.plans for f in p.families for choices in f.steps),
            "expressions": sum(len(p.rows) for p in outer.plans),
            "kernels": len({k for p in outer.plans for k in p.kernels}),
            "memory": memory_bytes(outer),
            "numpy": dict(numpy_calls(outer)),
        }
        for target, outers in zip(bundle.targets, bundle.methods, strict=True)
        for outer in outers.values()
    ]
