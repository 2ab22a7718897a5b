"""The named data of a program: its own, and that of `.ptd` files or mappings from key to bytes given with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidInput, InvalidProgram
from ..format import Program
from ..format.ptd import NamedTensor, read_data
from ..graph.importer import NamedData
from ..limits import has_read

Source = str | os.PathLike[str] | bytes | bytearray | memoryview
Data = Source | Mapping[str, memoryview] | Sequence[Source | Mapping[str, memoryview]] | None


def read_all(data: Data) -> list[Mapping[str, Any]]:
    """Files read; mappings as they are."""
    if data is None:
        return []
    one = isinstance(data, str | os.PathLike | bytes | bytearray | memoryview | Mapping)
    if not one and not isinstance(data, Sequence):
        raise InvalidInput(f"data is one or several .ptd files, or mappings to bytes, not {type(data).__name__}")
    sources: Sequence[Any] = [data] if one else data  # type: ignore[list-item, assignment]
    for source in sources:
        if isinstance(source, Mapping):
            given = [content for content in source.values() if not isinstance(content, NamedTensor)]  # which was read
            has_read(sum(memoryview(content).nbytes for content in given))
    return [source if isinstance(source, Mapping) else read_data(source) for source in sources]


def named_data(file: Program, data: Data) -> NamedData:
    """The program's named data and that given with it; a key in two places is an error."""
    merged: dict[str, Any] = dict(file.named_data)
    for found in read_all(data):
        for key, tensor in found.items():
            if key in merged:
                raise InvalidProgram(f"two files have named data with the key {key!r}", path=file.path)
            merged[key] = tensor
    return merged
