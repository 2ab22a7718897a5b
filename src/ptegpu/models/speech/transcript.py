"""What was said, and when; as text, subtitles and JSON."""

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
    logprob: float  # the mean over its window
    no_speech: float  # how likely nothing is said in its window


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
    """01:02:03.456"""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"


def srt(segments: Iterable[Segment]) -> str:
    """Subtitles as SubRip has them."""
    return "".join(
        f"{k}\n{clock(s.start, ',')} --> {clock(s.end, ',')}\n{_lines(s)}\n\n" for k, s in enumerate(segments, 1)
    )


def vtt(segments: Iterable[Segment]) -> str:
    """Subtitles as the web has them."""
    parts = (f"{clock(s.start)} --> {clock(s.end)}\n{_lines(s, web=True)}\n\n" for s in segments)
    return "WEBVTT\n\n" + "".join(parts)


def _lines(segment: Segment, web: bool = False) -> str:
    """On one line: an empty one would end it, and so would an arrow."""
    text = " ".join(segment.text.split()).replace("-->", "->")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") if web else text
