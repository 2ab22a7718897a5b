"""`ptegpu compile`: a program as a bundle, which loads without planning anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import ptegpu

from ..errors import InvalidInput
from ..explain.analysis import memory
from ..explain.guards import numpy_calls
from ..models.door import Source
from ..models.kinds import KINDS, LANGUAGE, resolve
from ..models.text import compiling
from ..models.text.compiling import Many
from ..plan import Bundle, Target
from ..units import counted, duration
from ..units import size as size_text
from .console import bar, explain, print_json, say, show_table
from .options import AsJson, CacheType, Data, Engine, Precision
from .sizes import parse_sizes
from .values import check_folder, find_method

BROWSER, THIS = "browser", "this"


def compile(
    model: Annotated[Path, typer.Argument(help="The program, a .pte file.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The bundle to write.", show_default=False)],
    data: Data = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Compile only this method; repeat for more.", show_default="all")
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes to plan for, such as 'input 0[1]=1..512' or 'input 0[0]=1,8'; repeat for more.",
            show_default="all that the program allows",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="browser (what every browser grants), this (the adapter here), or another adapter's index or part of "
            "its name; repeat for a bundle that has plans for several, of which the first that fits is used.",
            show_default=BROWSER,
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Add what `ptegpu serve` runs: a language model for many requests at once.")
    ] = False,
    sequences: Annotated[
        int, typer.Option(help="With --serve: the most requests that run at once.", min=1)
    ] = Many().sequences,
    memory: Annotated[
        float, typer.Option(help="With --serve: GiB for the key-value cache, at most.", min=0)
    ] = Many().memory / 2**30,
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: CacheType = "f32",
    json: AsJson = False,
) -> None:
    """Compile a program to a bundle, which all other commands take. Needs a GPU only for its own targets."""
    check_folder(output, "--output")
    sizes = parse_sizes(size or [])
    source = Source.of(model)
    if source.bundle is not None:
        raise InvalidInput(f"{model} is a bundle already")
    if output.exists() and output.samefile(model):
        raise InvalidInput(f"--output {output} is the program itself; name another file")
    for name in method or []:
        find_method(source.file, name)
    targets = [_target(name, engine) for name in target or [BROWSER]]
    started = time.perf_counter()
    with bar(f"Compiling {model.name}") as step:
        bundle = _maker(source, method, Many(sequences, int(memory * 2**30)) if serve else None, sizes)(
            source.file,
            data or None,
            targets,
            sizes=sizes or None,
            methods=method or None,
            precision=precision,
            progress=lambda name, done, total: step(done, total, name),
            cache=cache,
        )
        bundle.save(output)
    seconds, nbytes = time.perf_counter() - started, output.stat().st_size
    methods = bundle_methods(bundle)
    if json:
        names = [t.name for t in targets]
        report = {"model": str(model), "bundle": str(output), "nbytes": nbytes, "seconds": seconds, "targets": names}
        print_json(report | {"methods": methods})
        return
    say((output.name, "bold"), f" · {size_text(nbytes)}, made of {model.name} in {duration(seconds)}")
    _show(methods, several=len(targets) > 1)


def _maker(source: Source, methods: Sequence[str] | None, many: Many | None, sizes: Any) -> Callable[..., Bundle]:
    """Return what compiles a program, with what its kind plans unless its method is left out or sizes are given."""
    if many is not None:
        return partial(compiling.compile, many=many)
    row = KINDS[source.card.kind]
    language = source.card.kind in LANGUAGE
    if row.plans is None or (methods and compiling.METHOD not in methods) or (sizes and not language):
        return ptegpu.compile
    return partial(ptegpu.compile, **resolve(row.plans)(source.file, source.card))


def _target(name: str, engine: Engine) -> Target:
    if name == BROWSER:
        return Target()
    from ..gpu import open_device

    return open_device("auto" if name == THIS else name, engine=engine).target


def bundle_methods(bundle: Bundle) -> list[dict[str, Any]]:
    """What the bundle has for each target and method."""
    return [
        {
            "name": outer.name,
            "target": target.name,
            "plans": len(outer.plans),
            "families": sum(len(p.families) for p in outer.plans),
            "choices": sum(len(choices) for p in outer.plans for f in p.families for choices in f.steps),
            "expressions": sum(len(p.rows) for p in outer.plans),
            "kernels": len({k for p in outer.plans for k in p.kernels}),
            "memory": memory(outer),
            "numpy": dict(numpy_calls(outer)),
        }
        for target, outers in zip(bundle.targets, bundle.methods, strict=True)
        for outer in outers.values()
    ]


def _show(methods: Sequence[dict[str, Any]], several: bool) -> None:
    columns = ["method", "plans", "families", "choices", "expressions", "kernels", "GPU memory", "target"]
    rows = [
        [
            *(m[name] for name in ("name", *columns[1:6])),
            size_text(m["memory"]["total"]) if m["memory"] else "",
            m["target"] if several else "",
        ]
        for m in methods
    ]
    show_table("", columns, rows, right=range(1, 7))
    for name, calls in {m["name"]: m["numpy"] for m in methods if m["numpy"]}.items():
        listed = ", ".join(f"{op} ({n})" for op, n in calls.items())
        explain(listed, f"{name} needs {counted(len(calls), 'NumPy kernel')}: ", indent=2)
