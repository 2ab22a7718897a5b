"""One table of whole programs, with two uses: the tests, and saving them to run where PyTorch is not."""

from __future__ import annotations

from functools import cache

from ptegpu.export.layers import one_thread
from tests.saved import Program

from .decoders import DECODERS, Decoder
from .int8 import QUANTIZED, Quantized
from .models import MODELS, Methods, Model

__all__ = ["DECODERS", "FEW", "PROGRAMS", "program"]

PROGRAMS: dict[str, Model | Methods | Quantized | Decoder] = {**MODELS, **QUANTIZED, **DECODERS}

FEW = ["bert", "several outputs at every size", "state", "cond", "every kind of output", "int64"]


@cache
@one_thread()
def program(name: str) -> Program:
    """Exported, with calls and PyTorch's answers, by its name in the table."""
    return PROGRAMS[name].program(name)
