"""`ptegpu transcribe`: the speech in a WAV file, segment by segment; the time it took on stderr."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..units import duration
from .console import bars
from .generate import Stats, write
from .options import JsonAtEnd, LoadFlags, TokenizerPath
from .report import CommandReport


def transcribe(
    sound: Annotated[Path, typer.Argument(help="A WAV file.", show_default=False)],
    model: Annotated[
        Path,
        typer.Option(help="A Whisper model: a checkpoint folder or the result of `export speech`.", show_default=False),
    ],
    *,
    language: Annotated[
        str | None, typer.Option(help="The language spoken, such as en.", show_default="detected at the beginning")
    ] = None,
    task: Annotated[Literal["transcribe", "translate"], typer.Option(help="translate: into English.")] = "transcribe",
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print when each segment begins and ends.")] = False,
    srt: Annotated[bool, typer.Option("--srt", help="Print subtitles in SubRip format.")] = False,
    vtt: Annotated[bool, typer.Option("--vtt", help="Print subtitles in WebVTT format.")] = False,
    no_speech: Annotated[
        float, typer.Option(help="Skip a window if silence is more probable than this and its text is improbable.")
    ] = 0.6,
    tokenizer: TokenizerPath = None,
    loading: LoadFlags,
    stats: Stats = True,
    json: JsonAtEnd = False,
) -> CommandReport:
    """Transcribe speech to text."""
    if srt + vtt + json > 1:
        raise typer.BadParameter("give one of --srt, --vtt and --json")
    from ..models import speech

    with bars() as update:
        loaded = speech.SpeechModel(model, loading.options(update), tokenizer)
    with loaded:
        started = time.perf_counter()
        is_timed = timestamps or srt or vtt
        streams = not (srt or vtt or json)
        with bars() as update:
            transcript, segments = loaded.stream(
                sound, language=language, task=task, no_speech=no_speech, timestamps=is_timed or None, progress=update
            )
            for segment in segments:
                if streams and is_timed:
                    span = f"[{speech.clock(segment.start)} → {speech.clock(segment.end)}]"
                    write(f"{span} {segment.text.strip()}\n")
                elif streams:
                    write(segment.text if transcript.segments[0] is not segment else segment.text.lstrip())
        seconds = time.perf_counter() - started
        adapter = loaded.program.device.info
    if srt or vtt:
        write((speech.srt if srt else speech.vtt)(transcript.segments))
    elif streams and not is_timed:
        write("\n")
    about = {"sound": str(sound), "model": str(model), "adapter": adapter.record}
    report = CommandReport(about | transcript.json() | {"seconds": seconds})
    if stats:
        language_part = f" · language {transcript.language}" if transcript.language else ""
        report.remarks.append(f"{duration(transcript.duration)} of sound in {duration(seconds)}{language_part}")
    return report
