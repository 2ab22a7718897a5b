"""From a picture, a sound or a text to an answer: programs that say what they are for (`ptegpu export hf`).

`facts.py` is what such a file says, `media.py` makes arrays of pictures and sounds, `pipeline.py` runs the program and
reads its outputs. PyTorch is not needed.
"""

from ..facts import Audio, Facts, Image, Text, points_of, read_facts
from .pipeline import Answer, Label, Pipeline, Span, pipeline

__all__ = [
    "Answer",
    "Audio",
    "Facts",
    "Image",
    "Label",
    "Pipeline",
    "Span",
    "Text",
    "pipeline",
    "points_of",
    "read_facts",
]
