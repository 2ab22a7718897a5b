"""Speech to text with Whisper models.

from ptegpu.models.speech import SpeechModel
with SpeechModel("whisper.pte") as model:
    print(model.transcribe("sound.wav").text)
"""

from __future__ import annotations

from .model import SpeechModel, transcribe
from .transcript import Segment, Transcript, clock, srt, vtt

__all__ = ["Segment", "SpeechModel", "Transcript", "clock", "srt", "transcribe", "vtt"]
