"""`ptegpu web`: a program as a folder with a page that runs it on the visitor's GPU; `--serve` shows it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import ptegpu

from ..errors import InvalidInput
from ..files import read_text
from ..site import VARIANTS, Server, Site, make_site
from ..site.pages import TITLES
from ..units import duration
from ..units import size as size_text
from .console import bars, print_json, say, show_table
from .generate import TokenizerPath
from .options import AllowHost, AsJson, Data
from .sizes import parse_sizes

DEMO = Path(ptegpu.__file__).parent / "demo"
BUNDLED: dict[str, dict[str, Any]] = {  # what needs no file; options that are given win
    "demo": {
        "model": DEMO / "tales.pte",
        "title": "The tale-teller",
        "description": "A small language model that continues a title with a tale in the style of the Brothers Grimm. "
        "It runs on your own GPU, in this page.",
        "examples": list(TITLES),
    },
    "digits": {
        "model": DEMO / "digits.pte",
        "title": "Handwritten digits",
        "description": "Draw a digit, and a small network says which one it is. It runs on your own GPU, in this page.",
        "labels": [str(digit) for digit in range(10)],
    },
}
PARTS = ("page", "runner", "tokenizer", "plans", "weights")


def web(
    model: Annotated[
        str,
        typer.Argument(
            help="The program, a .pte file or a bundle; or demo, digits: the models that ptegpu brings along.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write.", show_default="NAME-site")
    ] = None,
    data: Data = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes to plan for, such as 'input 0[1]=1..512' or 'input 0[0]=1,8'; repeat for more.",
            show_default="all that the program allows",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What kernels are made for: {', '.join(VARIANTS)}; repeat for more. A browser takes the first that "
            "it can run, and fetches no other.",
            show_default="all of these",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="The title of the page.", show_default="the name of the file")
    ] = None,
    description: Annotated[
        str | None, typer.Option(help="A sentence about the model.", show_default="what kind it is")
    ] = None,
    page: Annotated[
        Literal["chat", "image", "task", "any"] | None,
        typer.Option(help="Which page.", show_default="what the program is"),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Of an image model: a text file with the name of a class on each line.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Of an image model: the mean of pixels from 0 to 1, such as 0.485,0.456,0.406.", show_default="0"
        ),
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Likewise their standard deviation, such as 0.229,0.224,0.225.", show_default="1")
    ] = None,
    tokenizer: TokenizerPath = None,
    example: Annotated[
        list[str] | None, typer.Option(help="A prompt that the chat page offers; repeat for more.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="Run the model here, if that is quick, so that the page can compare its results."
        ),
    ] = True,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the folder on this machine, until Ctrl-C.")] = False,
    port: Annotated[
        int | None, typer.Option(help="Where to serve it.", min=0, max=65535, show_default="8000 if free")
    ] = None,
    allow_host: AllowHost = None,
    json: AsJson = False,
) -> None:
    """Make a web page of a program: a folder for any static host. Needs no GPU."""
    bundled = BUNDLED.get(model, {}) if not Path(model).exists() else {}
    source = Path(bundled.get("model", model))
    given: dict[str, Any] = {
        "title": title,
        "description": description,
        "page": page,
        "labels": None if labels is None else _lines(labels),
        "mean": _numbers(mean, "--mean"),
        "std": _numbers(std, "--std"),
        "tokenizer": tokenizer,
        "examples": example,
        "targets": None if variant is None else [_target(name) for name in variant],
        "sizes": parse_sizes(size or []),
        "data": data or None,
        "check": check,
    }
    given |= {name: value for name, value in bundled.items() if name != "model" and given[name] is None}
    folder = output or Path(f"{model if bundled else source.stem}-site")
    with Server(folder, port, allow_host or []) if serve else nullcontext() as server:  # before all that takes its time
        started = time.perf_counter()
        with bars("Planning", "Reference", "Writing") as report:
            site = make_site(source, folder, progress=report, **given)
        seconds = time.perf_counter() - started
        if json:
            print_json(_report(site, source, seconds) | ({"url": server.url} if server else {}))
        else:
            _show(site, folder, source, seconds)
        if server:
            _serve(server, silent=json)


def _target(name: str) -> Any:
    if name not in VARIANTS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(VARIANTS)}", param_hint="--variant")
    return VARIANTS[name]


def _lines(path: Path) -> list[str]:
    return read_text(path, InvalidInput).rstrip("\n").splitlines()


def _numbers(text: str | None, option: str) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers, such as 0.5,0.5,0.5", param_hint=option) from None


def _report(site: Site, source: Path, seconds: float) -> dict[str, Any]:
    return {
        "model": str(source),
        "site": str(site.folder),
        "page": site.page.name,
        "title": site.title,
        "seconds": seconds,
        "variants": [{"name": name, "file": file} for name, file in site.variants],
        "check": site.check,
        "files": [{"name": f.name, "part": f.part, "nbytes": f.nbytes, "gzipped": f.gzipped} for f in site.files],
    }


def _show(site: Site, folder: Path, source: Path, seconds: float) -> None:
    total = sum(f.nbytes for f in site.files)
    say((str(folder), "bold"), f" · {size_text(total)}, made of {source.name} in {duration(seconds)}")
    say(f"The page is {site.page.name}: {site.page.why}.")
    variants: dict[str, str] = {}
    for name, file in site.variants:
        variants[file] = f"{variants[file]}, {name}" if file in variants else name
    rows = [
        [f.part if k == 0 else "", f.name, size_text(f.nbytes), size_text(f.gzipped), variants.get(f.name, "")]
        for part in PARTS
        for k, f in enumerate(f for f in site.files if f.part == part)
    ]
    show_table("", ["part", "file", "size", "gzipped", "for"], rows, right=(2, 3))
    plans = [f.gzipped for f in site.files if f.name in variants]
    rest = [f.gzipped for f in site.files if f.name not in (*variants, "check.bin", "LICENSES.txt")]
    say(f"A first visit loads {size_text(sum(rest) + max(plans))} at most.")
    if not site.check:
        say(f"The page cannot check its results, there is no reference: {site.note}.")


def _serve(server: Server, silent: bool) -> None:
    if not silent:
        say("Serving ", (server.url, "bold"), " until Ctrl-C.")
    try:
        server.run()
    except KeyboardInterrupt:
        if not silent:
            say()
