"""`ptegpu transcribe`: what is said in a WAV file, segment by segment; how long it took on stderr."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..limits import Limits
from ..units import duration
from .console import bars, note, print_json
from .generate import Stats, TokenizerPath, write
from .options import CacheType, DeviceName, Engine, LimitNames, Precision


def transcribe(
    sound: Annotated[Path, typer.Argument(help="A WAV file.", show_default=False)],
    model: Annotated[
        Path,
        typer.Option(help="A Whisper model: a checkpoint folder, or what `export speech` makes.", show_default=False),
    ],
    language: Annotated[
        str | None, typer.Option(help="What is spoken, such as en.", show_default="found out at the beginning")
    ] = None,
    task: Annotated[Literal["transcribe", "translate"], typer.Option(help="translate: into English.")] = "transcribe",
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Say when each segment begins and ends.")] = False,
    srt: Annotated[bool, typer.Option("--srt", help="Print subtitles as SubRip has them.")] = False,
    vtt: Annotated[bool, typer.Option("--vtt", help="Print subtitles as the web has them.")] = False,
    no_speech: Annotated[
        float, typer.Option(help="Windows are silent if that is likelier than this and their text is unlikely.")
    ] = 0.6,
    tokenizer: TokenizerPath = None,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: CacheType = "f32",
    limit: LimitNames = None,
    stats: Stats = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Write down what is said."""
    if srt + vtt + json > 1:
        raise typer.BadParameter("give one of --srt, --vtt and --json")
    with bars() as told:
        from ..models import speech
        from ..runtime import LoadOptions

        options = LoadOptions(device, engine, precision, cache, Limits.parse(limit or []), told)
        loaded = speech.SpeechModel(model, options, tokenizer)
    with loaded:
        started = time.perf_counter()
        marked = timestamps or srt or vtt
        shown = not (srt or vtt or json)
        asked: dict[str, Any] = {"language": language, "task": task, "no_speech": no_speech}
        with bars() as told:
            made, segments = loaded.stream(sound, timestamps=marked or None, progress=told, **asked)
            for segment in segments:
                if shown and marked:
                    span = f"[{speech.clock(segment.start)} → {speech.clock(segment.end)}]"
                    write(f"{span} {segment.text.strip()}\n")
                elif shown:
                    write(segment.text if made.segments[0] is not segment else segment.text.lstrip())
        seconds = time.perf_counter() - started
        if json:
            about = {"sound": str(sound), "model": str(model), "adapter": loaded.program.device.info.record}
            print_json(about | made.json() | {"seconds": seconds})
        elif not shown:
            write((speech.srt if srt else speech.vtt)(made.segments))
        elif not marked:
            write("\n")
    if stats and not json:
        parts = [f"{duration(made.duration)} of sound in {duration(seconds)}", f"language {made.language}"]
        note(" · ".join(parts if made.language else parts[:1]), style="dim")
