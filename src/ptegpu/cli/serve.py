"""`ptegpu serve`: language models and encoders behind OpenAI's API, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ptegpu

from ..errors import InvalidInput
from ..models.checkpoints import check_folder_kind, exported_once, is_checkpoint
from ..models.kinds import SERVED
from ..units import counted
from .console import bars, note
from .options import AsJson, HostNames, LoadFlags, SpeculationFlags, TokenizerPath
from .report import CommandReport

if TYPE_CHECKING:
    from ..serve import Engine

DEMO = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    models: Annotated[
        list[Path],
        typer.Argument(
            help="Language models or encoders: .pte files, bundles or checkpoint folders; or demo, the bundled one.",
            metavar="MODEL...",
            show_default=False,
        ),
    ],
    *,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 means all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 means any free one.", min=0, max=65535)] = 8000,
    allow_host: HostNames = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="A file of API keys, one per line, besides PTEGPU_API_KEYS.", show_default="no key is needed"
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Allow requests without an API key.")] = False,
    sequences: Annotated[int, typer.Option(help="The most requests that run at once, for each model.", min=1)] = 64,
    memory: Annotated[
        float | None,
        typer.Option(
            help="GiB for the key-value cache of each model.", min=0, show_default="as much as its requests can use"
        ),
    ] = None,
    queue: Annotated[int, typer.Option(help="The most requests that wait, for each model.", min=0)] = 64,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of an answer.", min=1)] = 4096,
    max_seconds: Annotated[float, typer.Option(help="The most seconds that a request takes.", min=0.1)] = 600.0,
    max_body: Annotated[int, typer.Option(help="The most bytes of a request.", min=1)] = 1 << 20,
    drain: Annotated[
        float, typer.Option(help="Seconds for running requests to finish when the server is stopped.", min=0)
    ] = 30.0,
    tokenizer: TokenizerPath = None,
    speculation: SpeculationFlags,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="A GPU to use: an index, or part of a name; see `ptegpu doctor`. Repeat for more: each model runs on "
            "each, and requests go to the one with the fewest.",
            show_default="auto",
            rich_help_panel=LoadFlags.PANEL,
        ),
    ] = None,
    loading: LoadFlags,
    json: AsJson = False,
) -> None:
    """Serve models to many clients at once, with the API that OpenAI's clients speak."""
    from ..models.tokenizer import check_tokenizer
    from ..serve import ServeLimits, Serving, Writes, bind, read_keys, url_of
    from ..serve import serve as run
    from ..serve.models import EngineLimits, open_model
    from ..serve.workers import open_workers
    from ..site.pages import TITLES

    models = [DEMO if path == Path("demo") and not path.exists() else path for path in models]
    names = [path.stem for path in models]
    if len(set(names)) < len(names):
        raise InvalidInput(f"two models have one name, {max(names, key=names.count)}: rename a file")
    if tokenizer and len(models) > 1:
        raise InvalidInput("--tokenizer is for one model: put those of several beside them, as NAME.tokenizer.json")
    if speculation.draft and len(models) > 1:
        raise InvalidInput("--draft is for one model: serve the others with another command")
    api_keys = read_keys(keys)
    if not api_keys and not open and host not in LOCAL:
        raise InvalidInput(f"{host} is reachable from other machines: give API keys with --keys, or use --open")
    for path in models:
        os.stat(path)  # before anything is loaded
        if is_checkpoint(path):
            check_folder_kind(path, SERVED, "a language model or an encoder")
            check_tokenizer(path, tokenizer)
    with bars() as update:
        models = [exported_once(path, update) for path in models]
    limits = ServeLimits(max_body, max_tokens, seconds=max_seconds, queue=queue, drain=drain)
    cache_bytes = None if memory is None else int(memory * 2**30)
    room = EngineLimits(sequences, cache_bytes, **speculation.options(), draft=speculation.draft)
    options = loading.options()
    with ExitStack() as stack, bind(host, port) as bound:
        page = url_of(bound) + "/"
        engines: dict[str, Engine] = {}
        for name, path in zip(names, models):
            openers = [
                (gpu, partial(open_model, path, name, replace(options, device=gpu), tokenizer, room, prepare=True))
                for gpu in device or ["auto"]
            ]
            with bars(f"Loading {path.name}") as update:
                opened = open_workers(name, openers, update)
            engines[name] = stack.enter_context(closing(opened))
            if opened.note:
                note(f"{path.name} answers one request at a time: {opened.note}", style="yellow")
        examples = {name: TITLES for name, path in zip(names, models) if path == DEMO}
        report = CommandReport({"url": f"{page}v1", "page": page, "models": names})
        kinds = ", ".join(f"{name} ({_kind(engine)})" for name, engine in engines.items())
        report.line("Serving ", (f"{page}v1", "bold"), f" until Ctrl-C: {kinds}")
        if any(isinstance(engine, Writes) for engine in engines.values()):
            report.line("In a browser: ", (page, "bold"))

        def started() -> None:
            report.print(json)
            sys.stdout.flush()  # a program may be waiting for this

        run(Serving(engines, api_keys, limits, examples), bound, started, [host, *(allow_host or [])])


def _kind(engine: Engine) -> str:
    from ..serve import Embeds

    if isinstance(engine, Embeds):
        return "embeddings"
    kinds = "chat and completions" if engine.model.has_chat else "completions"
    return f"{kinds}, {counted(engine.model.sequences, 'request')} at once"
