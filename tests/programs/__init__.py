"""The table of whole programs, for the tests and for saving them to run without PyTorch."""

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
    """Return an exported program of the table with its calls and PyTorch's answers."""
    return PROGRAMS[name].program(name)
