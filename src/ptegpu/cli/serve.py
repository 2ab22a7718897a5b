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
from ..models.checkpoints import check_folder_kind, is_checkpoint, program_of
from ..models.kinds import SERVED
from ..units import counted
from .console import bars, note, print_json, say
from .generate import TokenizerPath
from .options import AllowHost, AsJson, CacheType, LimitNames, Precision
from .options import Engine as EngineName

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
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0 takes any that is free.", min=0, max=65535)
    ] = 8000,
    allow_host: AllowHost = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="A file with an API key on each line; those of the environment variable PTEGPU_API_KEYS count, too.",
            show_default="no key is needed",
        ),
    ] = None,
    open: Annotated[
        bool, typer.Option("--open", help="Let everyone ask who reaches the address, without a key.")
    ] = False,
    sequences: Annotated[int, typer.Option(help="The most requests that run at once, for each model.", min=1)] = 64,
    memory: Annotated[
        float | None,
        typer.Option(
            help="GiB for the key-value cache of each model.", min=0, show_default="what its requests can use"
        ),
    ] = None,
    queue: Annotated[int, typer.Option(help="The most requests that wait, for each model.", min=0)] = 64,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of an answer.", min=1)] = 4096,
    max_seconds: Annotated[float, typer.Option(help="The most seconds that a request takes.", min=0.1)] = 600.0,
    max_body: Annotated[int, typer.Option(help="The most bytes of a request.", min=1)] = 1 << 20,
    drain: Annotated[
        float, typer.Option(help="When told to stop: the seconds that running requests have to finish.", min=0)
    ] = 30.0,
    tokenizer: TokenizerPath = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="A GPU to use: an index, or part of a name; see `ptegpu doctor`. Repeat for more: each model runs on "
            "each, and requests go to the one with the fewest.",
            show_default="auto",
        ),
    ] = None,
    engine: EngineName = "auto",
    precision: Precision = "auto",
    cache: CacheType = "f32",
    limit: LimitNames = None,
    json: AsJson = False,
) -> None:
    """Serve models to many clients at once, with the API that OpenAI's clients speak."""
    from ..models.tokenizer import check_tokenizer
    from ..runtime import LoadOptions
    from ..serve import Limits, Serving, Writes, bind, read_keys, url_of
    from ..serve import serve as run
    from ..serve.models import Room, open_model
    from ..serve.workers import open_workers
    from ..site.pages import TITLES

    models = [DEMO if path == Path("demo") and not path.exists() else path for path in models]
    names = [path.stem for path in models]
    if len(set(names)) < len(names):
        raise InvalidInput(f"two models have one name, {max(names, key=names.count)}: rename a file")
    if tokenizer and len(models) > 1:
        raise InvalidInput("--tokenizer is for one model: put those of several beside them, as NAME.tokenizer.json")
    known = read_keys(keys)
    if not known and not open and host not in LOCAL:
        raise InvalidInput(f"{host} can be reached by others: give API keys with --keys, or say --open")
    for path in models:
        os.stat(path)  # before anything is loaded
        if is_checkpoint(path):
            check_folder_kind(path, SERVED, "a language model or an encoder")
            check_tokenizer(path, tokenizer)
    with bars() as told:
        models = [program_of(path, told) for path in models]
    limits = Limits(max_body, max_tokens, seconds=max_seconds, queue=queue, drain=drain)
    room = Room(sequences, None if memory is None else int(memory * 2**30))
    loading = LoadOptions("auto", engine, precision, cache, ptegpu.Limits.parse(limit or []))
    devices = device or ["auto"]
    with ExitStack() as stack, bind(host, port) as bound:
        page = url_of(bound) + "/"
        url = f"{page}v1"
        engines: dict[str, Engine] = {}
        for name, path in zip(names, models):
            options = [(where, replace(loading, device=where)) for where in devices]
            makes = [(where, partial(open_model, path, name, o, tokenizer, room, prepare=True)) for where, o in options]
            with bars(f"Loading {path.name}") as told:
                opened = open_workers(name, makes, told)
            engines[name] = stack.enter_context(closing(opened))
            if opened.note:
                note(f"{path.name} answers one request at a time: {opened.note}", style="yellow")
        examples = {name: TITLES for name, path in zip(names, models) if path == DEMO}
        serving = Serving(engines, known, limits, examples)

        def started() -> None:
            if json:
                print_json({"url": url, "page": page, "models": names})
            else:
                kinds = ", ".join(f"{name} ({_kind(e)})" for name, e in engines.items())
                say("Serving ", (url, "bold"), f" until Ctrl-C: {kinds}")
                if any(isinstance(e, Writes) for e in engines.values()):
                    say("In a browser: ", (page, "bold"))
            sys.stdout.flush()  # whoever waits for this may be a program

        run(serving, bound, started, [host, *(allow_host or [])])


def _kind(engine: Engine) -> str:
    from ..serve import Embeds

    if isinstance(engine, Embeds):
        return "embeddings"
    kinds = "chat and completions" if engine.model.has_chat else "completions"
    return f"{kinds}, {counted(engine.model.sequences, 'request')} at once"
