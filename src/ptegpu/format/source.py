"""Sources of bytes: a small file that is read, a large one that is mapped, or memory that the caller owns.

A process dies if it touches a mapped page that the file has lost since. So the bulk of a file, weights on their way to
a GPU, is read from the file instead (`read_pieces`), and nothing is touched once a program is loaded.

A missing path raises `FileNotFoundError`. A file of another format raises `InvalidProgram`.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator
from io import FileIO
from typing import NamedTuple, NoReturn
from weakref import ref

import numpy as np

from ..errors import InvalidProgram
from ..limits import has_read

Source = str | os.PathLike[str] | bytes | bytearray | memoryview

PROGRAM = "an ExecuTorch program (.pte)"
DATA = "an ExecuTorch data file (.ptd)"

SMALL = 16 << 20  # bytes; a larger file is mapped
_PIECE = 32 << 20  # bytes of one read
_SIGNATURES = (  # (pattern of a file's first bytes, its format)
    (rb".{4}ET12", PROGRAM),
    (rb".{4}ET\d\d", "an ExecuTorch program of another format version"),
    (rb".{4}FT01", DATA),
    (rb".{4}BP\d\d", "an ExecuTorch bundled program (.bpte)"),
    (rb".{4}VH00", "a bare Vulkan delegate blob"),
    (rb".{4}TFL\d", "a TensorFlow Lite model"),
    (rb"PK\x03\x04.{26}[^/]+/(data\.pkl|\.format_version|archive_format)", "a PyTorch zip archive (.pt, .pth or .pt2)"),
    (rb"PK\x03\x04", "a zip archive"),
    (rb"\x80[\x02-\x05]", "a Python pickle (an old .pt, perhaps)"),
    (rb"GGUF", "a GGUF model"),
    (rb'.{8}\{"', "a safetensors file"),
    (rb"\x08[\x01-\x14][\x12\x1a\x22\x2a\x32\x3a\x42]", "an ONNX model"),
    (rb"version https://git-lfs", "a Git LFS pointer (run `git lfs pull`)"),
    (rb"\s*<(!DOCTYPE|html|\?xml)", "a web page instead of the intended download"),
    (rb"\x7fELF", "an executable or a library"),
    (rb"\x1f\x8b", "a gzip archive"),
)


def open_source(source: Source, *, name: str | None, expected: str) -> tuple[memoryview, str | None]:
    """Return the read-only bytes of `source`, and its name in messages: `name`, else its path."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, label = memoryview(source).cast("B").toreadonly(), name
    else:
        label = name or os.fspath(source)
        data = _map(os.fspath(source), label, expected)
    if not data:
        raise InvalidProgram(f"not {expected}: it is empty", path=label)
    has_read(len(data))
    return data, label


def fail_foreign(data: memoryview, path: str | None, expected: str) -> NoReturn:
    """Raise InvalidProgram for a file of another format, and name that format if it can be recognised."""
    head = bytes(data[:256])
    for pattern, format in _SIGNATURES:
        if re.match(pattern, head, re.DOTALL):
            raise InvalidProgram(f"not {expected}: this looks like {format}", offset=0, path=path)
    raise InvalidProgram(f"not {expected}: it starts with {head[:8].hex(' ')}", offset=0, path=path)


def _map(path: str, label: str, expected: str) -> memoryview:
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        if expected == PROGRAM and stat.S_ISDIR(mode) and not os.path.exists(os.path.join(path, "config.json")):
            reason = "has no config.json: give a program (.pte) or the folder of a Hugging Face checkpoint"
            raise InvalidProgram(f"{label} {reason}")
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise InvalidProgram(f"not {expected}: it is {kind}", path=label)
    file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed with the mapping)
    size = os.fstat(file.fileno()).st_size
    if size <= SMALL:
        with file:
            return memoryview(file.read(size))
    mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    view = memoryview(mapping)
    for unmapped in [start for start, other in _files.items() if other.mapping() is None]:
        _files.pop(unmapped).file.close()
    _files[_address(view)] = _MappedFile(size, file, label, ref(mapping))
    return view


class _MappedFile(NamedTuple):
    size: int
    file: FileIO
    label: str
    mapping: ref[mmap.mmap]  # without a callback: an interrupt that arrives in one is lost


_files: dict[int, _MappedFile] = {}  # by address; those whose mapping is gone are removed with the next mapping


def _address(view: memoryview | bytes) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def read_pieces(view: memoryview | bytes) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a view in pieces. Those of a mapped file are read; raise if the file was truncated."""
    start = _address(view) if len(view) else 0
    base = next((b for b, f in _files.items() if b <= start < b + f.size and f.mapping() is not None), None)
    if base is None:
        yield view
        return
    (_, file, label, _), nbytes = _files[base], memoryview(view).nbytes
    for done in range(0, nbytes, _PIECE):
        length = min(_PIECE, nbytes - done)
        file.seek(start - base + done)
        piece = file.read(length)
        if len(piece) < length:
            raise InvalidProgram("the file was truncated while it was loaded", path=label)
        yield piece
