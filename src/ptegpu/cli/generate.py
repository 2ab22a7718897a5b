"""`ptegpu generate`: the continuation of a prompt, streamed; tokens per second on stderr."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ..models.checkpoints import check_folder_kind, is_checkpoint
from ..models.kinds import LANGUAGE
from ..printing import streamed
from ..units import counted, duration
from .console import bars, console
from .options import JsonAtEnd, LoadFlags, SamplingFlags, SpeculationFlags, TokenizerPath
from .report import CommandReport

if TYPE_CHECKING:
    from ..models.text import Generation, LanguageModel, Stream

CANCELLED = 130  # exit code, as shells have it for Ctrl-C

TextModel = Annotated[
    Path, typer.Argument(help="The language model: a .pte file, a bundle or a checkpoint folder.", show_default=False)
]
Images = Annotated[list[Path] | None, typer.Option("--image", help="A picture, for models that see; repeat for more.")]
System = Annotated[str | None, typer.Option(help="Instructions to the model, before the conversation.")]
Stats = Annotated[bool, typer.Option("--stats/--no-stats", help="Print tokens per second on stderr.")]


def generate(
    model: TextModel,
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.", show_default=False)],
    *,
    sampling: SamplingFlags,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; repeat for more.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Treat the prompt as a message to the model, not as text to continue.")
    ] = False,
    system: System = None,
    image: Images = None,
    tokenizer: TokenizerPath = None,
    speculation: SpeculationFlags,
    loading: LoadFlags,
    stats: Stats = True,
    json: JsonAtEnd = False,
) -> CommandReport:
    """Continue a text, or answer a message with --chat or --system."""
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    options = sampling.options() | speculation.options()
    loaded, load_s = open_model(model, tokenizer, loading, speculation.draft)
    with loaded:
        is_message = chat or system is not None
        speaker = loaded.chat(system) if is_message else loaded
        stream = speaker.stream(text, pictures=image or [], **options, stop=stop or [])
        if not json and not is_message and sys.stdout.isatty():
            console().print(Text(streamed(text), "dim"), end="", soft_wrap=True)
        with interruptible(stream):
            for piece in stream:
                if not json:
                    write(piece)
        if not json:
            write("\n")
        report = generation_report(model, loaded, stream.generation, load_s)
        if stats:
            report.remarks.append(speed_text(stream.generation))
        return report


def open_model(
    path: Path, tokenizer: Path | None, loading: LoadFlags, draft: Path | None = None
) -> tuple[LanguageModel, float]:
    """Return the language model with its tokenizer and its draft, and the seconds that loading took."""
    from ..models.door import ProgramSource
    from ..models.text import LanguageModel
    from ..models.text.signature import read_signature
    from ..models.tokenizer import check_tokenizer, find_files

    with bars(f"Loading {path.name}") as update:
        started = time.perf_counter()
        options = loading.options(update)
        if is_checkpoint(path):
            check_folder_kind(path, LANGUAGE)
            check_tokenizer(path, tokenizer)
        source = ProgramSource.of(path, options)
        read_signature(source.file, source.card)  # raises for other kinds of models, before a tokenizer is missed
        find_files(source.path, tokenizer)
        loaded = LanguageModel(source, options, tokenizer, draft=draft)
        try:
            assert loaded.tokenizer
        except BaseException:
            loaded.close()
            raise
        return loaded, time.perf_counter() - started


def write(text: str) -> None:
    """Write to stdout at once; on a terminal, without control characters that a model may produce."""
    sys.stdout.write(streamed(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


@contextmanager
def interruptible(stream: Stream) -> Iterator[None]:
    """End the text after the current token at the first Ctrl-C; the second raises as usual."""
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


def speed_text(generation: Generation) -> str:
    """Return tokens, seconds and tokens per second of prefill and decode, and why the text ended."""
    t = generation.timings
    prefill = f"prefill {counted(t.prefill_tokens, 'token')}, {duration(t.prefill_s)}, {t.prefill_rate:.3g} tokens/s"
    parts = [prefill + (f" ({counted(t.reused_tokens, 'token')} in the cache)" if t.reused_tokens else "")]
    if t.decode_tokens:
        rate = f"{t.decode_rate:.3g} tokens/s"
        parts.append(f"decode {counted(t.decode_tokens, 'token')}, {duration(t.decode_s)}, {rate}")
    if s := generation.speculation:
        parts.append(f"{s.accepted} of {counted(s.proposed, 'proposed token')} accepted")
        if s.reason:
            parts[-1] = f"no speculation: {s.reason}"
    return " · ".join([*parts, str(generation.finish_reason)])


def generation_report(path: Path, model: LanguageModel, generation: Generation, load_s: float) -> CommandReport:
    """Return the record of a generation, whose text was streamed."""
    t = generation.timings
    record = {
        "model": str(path),
        "adapter": model.program.device.info.record,
        "text": generation.text,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "prompt_tokens": generation.prompt_tokens,
        "tokens": generation.tokens,
        "logprobs": generation.logprobs,
        "load_s": load_s,
        "speculation": generation.speculation and asdict(generation.speculation),
        "timings": asdict(t) | {"prefill_tokens_per_s": t.prefill_rate, "decode_tokens_per_s": t.decode_rate},
    }
    return CommandReport(record, CANCELLED if generation.finish_reason == "cancelled" else 0)
