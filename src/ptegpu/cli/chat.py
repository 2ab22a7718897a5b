"""`ptegpu chat`: a conversation, line by line. Ctrl-C stops the answer, not the chat."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.text import Text

from ..errors import InvalidInput
from .console import console, note, print_error
from .generate import Images, Stats, System, TextModel, interruptible, open_model, speed_text, write
from .options import LoadFlags, SamplingFlags, SpeculationFlags, TokenizerPath

if TYPE_CHECKING:
    from ..models.text import Conversation
    from ..models.text.pictures import Picture

SAMPLING = SamplingFlags(1024, 0.7, top_p=0.95)
HELP = "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
HELP_WITH_PICTURES = f"/image FILE shows a picture, {HELP}"


def chat(
    model: TextModel,
    *,
    system: System = None,
    image: Images = None,
    sampling: SamplingFlags = SAMPLING,
    tokenizer: TokenizerPath = None,
    speculation: SpeculationFlags,
    loading: LoadFlags,
    stats: Stats = False,
) -> None:
    """Talk with a model; from a pipe, each line is a message."""
    options = sampling.options() | speculation.options()
    loaded, _ = open_model(model, tokenizer, loading, speculation.draft)
    with loaded:
        conversation = loaded.chat(system, **options)
        pictures = [loaded.see(path) for path in image or ()]  # for the next message
        help = HELP if loaded.pictures is None else HELP_WITH_PICTURES
        _note(f"{model.name} on {loaded.program.device.info.name} · {help}")
        while (line := _ask(help)) is not None:
            if line in ("/exit", "/quit"):
                return
            if line == "/reset":
                conversation.reset()
                pictures = []
                _note("a new conversation")
            elif line.startswith("/image "):
                pictures += _read_picture(conversation, line.removeprefix("/image ").strip())
            elif line.startswith("/"):
                _note(help)
            elif line:
                pictures = _turn(conversation, line, pictures, stats)


def _read_picture(conversation: Conversation, path: str) -> list[Picture]:
    try:
        picture = conversation.model.see(path)
    except (InvalidInput, OSError) as e:
        print_error(f"{path}: {e.strerror}" if isinstance(e, OSError) and e.strerror else str(e))
        return []
    _note("picture read; what about it?")
    return [picture]


def _turn(conversation: Conversation, line: str, pictures: list[Picture], stats: bool) -> list[Picture]:
    """Stream the answer to one message; return the pictures that are left for the next one."""
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
        note(speed_text(stream.generation), style="dim")
    return []


def _ask(help: str) -> str | None:
    """Return the next line, or None at the end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    with suppress(ImportError):  # gives input() history and editing where the system has it
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
    """Print a note for a person at the terminal; a pipe gets none."""
    if sys.stdin.isatty():
        note(text, style="dim")
