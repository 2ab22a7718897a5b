"""Transcripts with times, as text, subtitles and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Segment:
    start: float  # seconds
    end: float
    text: str
    tokens: list[int]  # with timestamps
    logprob: float  # mean of its window
    no_speech: float  # probability that nothing is said in its window


@dataclass(slots=True)
class Transcript:
    duration: float  # seconds of sound
    language: str | None = None
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(s.text for s in self.segments).strip()

    def json(self) -> dict[str, Any]:
        segments = [asdict(s) for s in self.segments]
        return {"duration": self.duration, "language": self.language, "text": self.text, "segments": segments}


def clock(seconds: float, point: str = ".") -> str:
    """Format a time as 01:02:03.456."""
    rounded, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{rounded // 3600:02}:{rounded // 60 % 60:02}:{rounded % 60:02}{point}{milliseconds:03}"


def srt(segments: Iterable[Segment]) -> str:
    """Format subtitles as SubRip."""
    return "".join(
        f"{k}\n{clock(s.start, ',')} --> {clock(s.end, ',')}\n{_lines(s)}\n\n" for k, s in enumerate(segments, 1)
    )


def vtt(segments: Iterable[Segment]) -> str:
    """Format subtitles as WebVTT."""
    parts = (f"{clock(s.start)} --> {clock(s.end)}\n{_lines(s, web=True)}\n\n" for s in segments)
    return "WEBVTT\n\n" + "".join(parts)


def _lines(segment: Segment, web: bool = False) -> str:
    """Return the text on one line; an empty line or an arrow would end the subtitle."""
    text = " ".join(segment.text.split()).replace("-->", "->")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") if web else text
