"""`ptegpu chat`: a conversation, line by line. Ctrl-C stops the answer, not the chat."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..errors import InvalidInput
from .console import console, note, print_error
from .generate import (
    Images,
    MaxTokens,
    MinP,
    Model,
    RepeatPenalty,
    Seed,
    Stats,
    System,
    Temperature,
    TokenizerPath,
    TopK,
    TopP,
    interruptible,
    open_model,
    show_stats,
    write,
)
from .options import CacheType, DeviceName, Engine, LimitNames, Precision

if TYPE_CHECKING:
    from ..models.text import Conversation
    from ..models.text.pictures import Picture

HELP = "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
SEEING = f"/image FILE shows a picture, {HELP}"


def chat(
    model: Model,
    system: System = None,
    image: Images = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.7,
    top_k: TopK = 0,
    top_p: TopP = 0.95,
    min_p: MinP = 0.0,
    repeat_penalty: RepeatPenalty = 1.0,
    seed: Seed = None,
    tokenizer: TokenizerPath = None,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: CacheType = "f32",
    limit: LimitNames = None,
    stats: Stats = False,
) -> None:
    """Talk with a model; from a pipe, each line is a message."""
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "seed": seed,
    }
    loaded, _ = open_model(model, tokenizer, device, engine, precision, cache, limit)
    with loaded:
        conversation = loaded.chat(system, **options)
        pictures = [loaded.see(path) for path in image or ()]  # for the next message
        help = HELP if loaded.pictures is None else SEEING
        _note(f"{model.name} on {loaded.program.device.info.name} · {help}")
        while (line := _ask(help)) is not None:
            if line in ("/exit", "/quit"):
                return
            if line == "/reset":
                conversation.reset()
                pictures = []
                _note("a new conversation")
            elif line.startswith("/image "):
                pictures += _seen(conversation, line.removeprefix("/image ").strip())
            elif line.startswith("/"):
                _note(help)
            elif line:
                pictures = _turn(conversation, line, pictures, stats)


def _seen(conversation: Conversation, path: str) -> list[Picture]:
    try:
        found = conversation.model.see(path)
    except (InvalidInput, OSError) as e:
        print_error(f"{path}: {e.strerror}" if isinstance(e, OSError) and e.strerror else str(e))
        return []
    _note("seen; what about it?")
    return [found]


def _turn(conversation: Conversation, line: str, pictures: list[Picture], stats: bool) -> list[Picture]:
    """The pictures that are left for the next message."""
    try:
        stream = conversation.stream(line, pictures=pictures)
    except InvalidInput as e:
        print_error(f"{e}; /reset starts over")
        return pictures
    with interruptible(stream):
        for piece in stream:
            write(piece)
    write("\n")
    if stream.generation.finish_reason == "context":
        print_error("the model's context is full; /reset starts over")
    if stats:
        show_stats(stream.generation)
    return []


def _ask(help: str) -> str | None:
    """The next line; None at the end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    with suppress(ImportError):  # not on every system: input with history and editing
        import readline  # noqa: F401
    try:
        return console().input(Text("› ", "bold cyan")).strip()
    except EOFError:
        write("\n")
        return None
    except KeyboardInterrupt:
        write("\n")
        _note(help)
        return ""


def _note(text: str) -> None:
    """For a person at the terminal, not for a pipe."""
    if sys.stdin.isatty():
        note(text, style="dim")
