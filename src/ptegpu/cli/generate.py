"""`ptegpu generate`: the continuation of a prompt, streaming; tokens per second on stderr."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ..limits import Limits
from ..models.checkpoints import check_folder_kind, is_checkpoint
from ..models.kinds import LANGUAGE
from ..printing import streamed
from ..units import counted, duration
from .console import bars, console, note, print_json
from .options import CacheType, DeviceName, Engine, LimitNames, Precision

if TYPE_CHECKING:
    from ..models.text import Generation, LanguageModel, Stream

CANCELLED = 130  # the exit code, as shells have it for Ctrl-C

Model = Annotated[
    Path, typer.Argument(help="The language model: a .pte file, a bundle or a checkpoint folder.", show_default=False)
]
MaxTokens = Annotated[int, typer.Option(help="The most tokens to generate.", min=1)]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token; higher is more varied.", min=0)]
TopK = Annotated[int, typer.Option(help="Choose only among the K likeliest tokens; 0 means all.", min=0)]
TopP = Annotated[float, typer.Option(help="Choose among the likeliest tokens that together have this probability.")]
MinP = Annotated[float, typer.Option(help="Choose among tokens at least this likely, relative to the likeliest.")]
RepeatPenalty = Annotated[float, typer.Option(help="Above 1, tokens that already occurred become less likely.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.", show_default="random")]
Images = Annotated[
    list[Path] | None, typer.Option("--image", help="A picture to look at, for models that see; repeat for more.")
]
System = Annotated[str | None, typer.Option(help="Instructions to the model, before the conversation.")]
TokenizerPath = Annotated[
    Path | None, typer.Option(help="tokenizer.json, or a folder that contains it.", show_default="next to the model")
]
Stats = Annotated[bool, typer.Option("--stats/--no-stats", help="Print tokens per second on stderr.")]


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.", show_default=False)],
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repeat_penalty: RepeatPenalty = 1.0,
    seed: Seed = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; repeat for more.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Treat the prompt as a message to the model, not as text to continue.")
    ] = False,
    system: System = None,
    image: Images = None,
    tokenizer: TokenizerPath = None,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: CacheType = "f32",
    limit: LimitNames = None,
    stats: Stats = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Continue a text, or answer a message with --chat or --system."""
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": seed,
        "stop": stop or [],
    }
    loaded, load_s = open_model(model, tokenizer, device, engine, precision, cache, limit)
    with loaded:
        asks = chat or system is not None
        asked = loaded.chat(system) if asks else loaded
        stream = asked.stream(text, pictures=image or [], **options)
        if not json and not asks and sys.stdout.isatty():
            console().print(Text(streamed(text), "dim"), end="", soft_wrap=True)
        with interruptible(stream):
            for piece in stream:
                if not json:
                    write(piece)
        if json:
            print_json(report(model, loaded, stream.generation, load_s))
        else:
            write("\n")
            if stats:
                show_stats(stream.generation)
    if stream.generation.finish_reason == "cancelled":
        raise typer.Exit(CANCELLED)


def open_model(
    path: Path,
    tokenizer: Path | None,
    device: str,
    engine: Engine,
    precision: Precision,
    cache: CacheType = "f32",
    limit: LimitNames = None,
) -> tuple[LanguageModel, float]:
    """The model with its tokenizer, or the error that there is none; and the seconds that took."""
    from ..models.door import Source
    from ..models.text import LanguageModel
    from ..models.text.signature import read_signature
    from ..models.tokenizer import check_tokenizer, find_files
    from ..runtime import LoadOptions

    with bars(f"Loading {path.name}") as told:
        started = time.perf_counter()
        if is_checkpoint(path):
            check_folder_kind(path, LANGUAGE)
            check_tokenizer(path, tokenizer)
        options = LoadOptions(device, engine, precision, cache, Limits.parse(limit or []), told)
        source = Source.of(path, options)
        read_signature(source.file, source.card)  # of what is no language model, that is the error
        find_files(source.path, tokenizer)
        loaded = LanguageModel(source, options, tokenizer)
        try:
            assert loaded.tokenizer
        except BaseException:
            loaded.close()
            raise
        return loaded, time.perf_counter() - started


def write(text: str) -> None:
    """On stdout at once, as it is; but nothing that a model writes steers a terminal."""
    sys.stdout.write(streamed(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


@contextmanager
def interruptible(stream: Stream) -> Iterator[None]:
    """The first Ctrl-C ends the text after the current token, the second raises as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stream.cancelled:
            raise KeyboardInterrupt
        stream.cancel()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def show_stats(made: Generation) -> None:
    """Tokens, seconds and tokens per second of prefill and decode, and why the text ended, on stderr."""
    t = made.timings
    parts = [f"prefill {counted(t.prefill_tokens, 'token')}, {duration(t.prefill_s)}, {t.prefill_rate:.3g} tokens/s"]
    if t.reused_tokens:
        parts[0] += f" ({counted(t.reused_tokens, 'token')} in the cache)"
    if t.decode_tokens:
        parts.append(
            f"decode {counted(t.decode_tokens, 'token')}, {duration(t.decode_s)}, {t.decode_rate:.3g} tokens/s"
        )
    parts.append(f"{made.finish_reason}")
    note(" · ".join(parts), style="dim")


def report(path: Path, model: LanguageModel, made: Generation, load_s: float) -> dict[str, Any]:
    """Everything about a generation, for programs."""
    adapter, t = model.program.device.info, made.timings
    return {
        "model": str(path),
        "adapter": adapter.record,
        "text": made.text,
        "finish_reason": made.finish_reason,
        "seed": made.seed,
        "prompt_tokens": made.prompt_tokens,
        "tokens": made.tokens,
        "logprobs": made.logprobs,
        "load_s": load_s,
        "timings": asdict(t) | {"prefill_tokens_per_s": t.prefill_rate, "decode_tokens_per_s": t.decode_rate},
    }
