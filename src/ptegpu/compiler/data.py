"""The named data of a program: its own, and that of `.ptd` files or mappings from key to bytes given with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidInput, InvalidProgram
from ..format import Program, read_data
from ..graph.importer import NamedData
from ..limits import has_read

Source = str | os.PathLike[str] | bytes | bytearray | memoryview
Data = Source | Mapping[str, memoryview] | Sequence[Source | Mapping[str, memoryview]] | None


def named_data(file: Program, data: Data) -> NamedData:
    """The program's named data and that given with it; a key in two places is an error."""
    if data is None:
        sources: Sequence[Source | Mapping[str, Any]] = []
    else:
        one = isinstance(data, str | os.PathLike | bytes | bytearray | memoryview | Mapping)
        if not one and not isinstance(data, Sequence):
            raise InvalidInput(f"data is one or several .ptd files, or mappings to bytes, not {type(data).__name__}")
        sources = [data] if one else data  # type: ignore[list-item, assignment]
    merged: dict[str, Any] = dict(file.named_data)
    for source in sources:
        found = source if isinstance(source, Mapping) else read_data(source)
        if isinstance(source, Mapping):
            has_read(sum(memoryview(data).nbytes for data in source.values()))
        for key, tensor in found.items():
            if key in merged:
                raise InvalidProgram(f"two files have named data with the key {key!r}", path=file.path)
            merged[key] = tensor
    return merged
