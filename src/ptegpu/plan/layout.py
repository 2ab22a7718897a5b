"""The constants of a bundle's file format, which `save.py` writes and `read.py` reads."""

from __future__ import annotations

from typing import Any

from ..format.pte import BoolList, FloatList, IntList, TensorList
from .plan import Binding, Choice, Copy, Dispatch, Patch

MAGIC = b"ptegpu\x00B"
FORMAT = "ptegpu-bundle"
VERSION, WEB_VERSION = 1, 2  # of the file, and of the folder
HEAD = len(MAGIC) + 8 + 32
ALIGN = 64
MANIFEST = "bundle.json"
ARRAYS = (Binding, Patch, Dispatch, Choice, Copy)  # of which there are many: lists of their fields
LISTS: dict[str, Any] = {"ints": IntList, "floats": FloatList, "bools": BoolList, "tensors": TensorList}
