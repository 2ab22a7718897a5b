"""Speech to text with Whisper models.

with ptegpu.open("whisper.pte") as model:
    print(model.transcribe("sound.wav").text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from .model import SpeechModel, transcribe
    from .transcript import Segment, Transcript, clock, srt, vtt

__getattr__ = lazy(
    __name__,
    {
        "Segment": ".transcript",
        "SpeechModel": ".model",
        "Transcript": ".transcript",
        "clock": ".transcript",
        "srt": ".transcript",
        "transcribe": ".model",
        "vtt": ".transcript",
    },
)

__all__ = ["Segment", "SpeechModel", "Transcript", "clock", "srt", "transcribe", "vtt"]
