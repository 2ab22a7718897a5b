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
from ..site import VARIANTS, Site, SiteServer, make_site
from ..site.pages import TITLES
from ..units import duration
from ..units import size as size_text
from .console import bars, say
from .inputs import parse_sizes
from .options import AsJson, DataFiles, HostNames, PlannedSizes, TokenizerPath
from .report import CommandReport

DEMO = Path(ptegpu.__file__).parent / "demo"
BUNDLED: dict[str, dict[str, Any]] = {  # models that need no file; options of the command line replace theirs
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
IMAGES = "Image models"  # panel of --help


def web(
    model: Annotated[
        str,
        typer.Argument(help="The program, a .pte file or a bundle; or demo or digits, bundled.", show_default=False),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write.", show_default="NAME-site")
    ] = None,
    data: DataFiles = None,
    size: PlannedSizes = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kernels for {', '.join(VARIANTS)}; repeat for more. A browser fetches the first that it can run.",
            show_default="all of these",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.", show_default="the name of the file")] = None,
    description: Annotated[
        str | None, typer.Option(help="A sentence about the model.", show_default="the kind of model")
    ] = None,
    page: Annotated[
        Literal["chat", "image", "task", "any"] | None,
        typer.Option(help="The page to use.", show_default="chosen by the program"),
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Class names, one per line.", rich_help_panel=IMAGES)] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="Mean of pixels (0 to 1), as 0.485,0.456,0.406.", show_default="0", rich_help_panel=IMAGES),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(help="Their standard deviation, as 0.229,0.224,0.225.", show_default="1", rich_help_panel=IMAGES),
    ] = None,
    tokenizer: TokenizerPath = None,
    example: Annotated[
        list[str] | None, typer.Option(help="A prompt that the chat page offers; repeat for more.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Run the model here, if it is quick, for the page to compare with."),
    ] = True,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the folder on this machine, until Ctrl-C.")] = False,
    port: Annotated[
        int | None, typer.Option(help="The port to serve it on.", min=0, max=65535, show_default="8000 if free")
    ] = None,
    allow_host: HostNames = None,
    json: AsJson = False,
) -> None:
    """Make a web page of a program: a folder for any static host. Needs no GPU."""
    bundled = BUNDLED.get(model, {}) if not Path(model).exists() else {}
    source = Path(bundled.get("model", model))
    options: dict[str, Any] = {
        "title": title,
        "description": description,
        "page": page,
        "labels": None if labels is None else read_text(labels, InvalidInput).rstrip("\n").splitlines(),
        "mean": _numbers(mean, "--mean"),
        "std": _numbers(std, "--std"),
        "tokenizer": tokenizer,
        "examples": example,
        "targets": None if variant is None else [_target(name) for name in variant],
        "sizes": parse_sizes(size or []),
        "data": data or None,
        "check": check,
    }
    options |= {name: value for name, value in bundled.items() if name != "model" and options[name] is None}
    folder = output or Path(f"{model if bundled else source.stem}-site")
    # the port is taken before the work that takes its time
    with SiteServer(folder, port, allow_host or []) if serve else nullcontext() as server:
        started = time.perf_counter()
        with bars("Planning", "Reference", "Writing") as update:
            site = make_site(source, folder, progress=update, **options)
        report = _site_report(site, folder, source, time.perf_counter() - started)
        if server is None:
            report.print(json)
            return
        report.record["url"] = server.url
        report.line("Serving ", (server.url, "bold"), " until Ctrl-C.")
        report.print(json)
        try:
            server.serve_forever(0.1)
        except KeyboardInterrupt:
            if not json:
                say()


def _target(name: str) -> Any:
    if name not in VARIANTS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(VARIANTS)}", param_hint="--variant")
    return VARIANTS[name]


def _numbers(text: str | None, option: str) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected numbers, such as 0.5,0.5,0.5", param_hint=option) from None


def _site_report(site: Site, folder: Path, source: Path, seconds: float) -> CommandReport:
    report = CommandReport(
        {
            "model": str(source),
            "site": str(site.folder),
            "page": site.page.name,
            "title": site.title,
            "seconds": seconds,
            "variants": [{"name": name, "file": file} for name, file in site.variants],
            "check": site.check,
            "files": [{"name": f.name, "part": f.part, "nbytes": f.nbytes, "gzipped": f.gzipped} for f in site.files],
        }
    )
    total = sum(f.nbytes for f in site.files)
    report.line((str(folder), "bold"), f" · {size_text(total)}, made of {source.name} in {duration(seconds)}")
    report.line(f"The page is {site.page.name}: {site.page.why}.")
    variants: dict[str, str] = {}
    for name, file in site.variants:
        variants[file] = f"{variants[file]}, {name}" if file in variants else name
    rows = [
        [f.part if k == 0 else "", f.name, size_text(f.nbytes), size_text(f.gzipped), variants.get(f.name, "")]
        for part in PARTS
        for k, f in enumerate(f for f in site.files if f.part == part)
    ]
    report.table(["part", "file", "size", "gzipped", "for"], rows, right=(2, 3))
    plans = [f.gzipped for f in site.files if f.name in variants]
    rest = [f.gzipped for f in site.files if f.name not in (*variants, "check.bin", "LICENSES.txt")]
    report.line(f"A first visit loads {size_text(sum(rest) + max(plans))} at most.")
    if not site.check:
        report.line(f"The page cannot check its results, there is no reference: {site.note}.")
    return report
