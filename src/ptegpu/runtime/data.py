"""The named data of a program: its own, and that of `.ptd` files given with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidProgram
from ..format import Program, read_data
from ..graph.importer import NamedData

Source = str | os.PathLike[str] | bytes | bytearray | memoryview


def named_data(file: Program, data: Source | Sequence[Source] | None) -> NamedData:
    """The program's named data and that of the `.ptd` files; a key in two places is an error."""
    if data is None:
        sources: Sequence[Source] = []
    else:
        sources = [data] if isinstance(data, str | os.PathLike | bytes | bytearray | memoryview) else data
    merged: dict[str, Any] = dict(file.named_data)
    for source in sources:
        for key, tensor in read_data(source).items():
            if key in merged:
                raise InvalidProgram(f"the named data {key!r} is in two files", path=file.path)
            merged[key] = tensor
    return merged
