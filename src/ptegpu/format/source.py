"""Where bytes come from: a small file that is read, a large one that is mapped, or memory that the caller holds.

A process dies where it touches a mapped page that the file has lost meanwhile. So the bulk of it, weights on their way
to a GPU, is read from the file instead (`steady`), and nothing is touched once a program is loaded.

A missing path stays `FileNotFoundError`; what is there but cannot be what was asked for raises `InvalidProgram`.
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

SMALL = 16 << 20  # bytes of a file that is read as a whole
_PIECE = 32 << 20  # bytes that are read at once
_LOOKS = (  # (how a file starts, what it is)
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
    (rb"\s*<(!DOCTYPE|html|\?xml)", "a web page, not the download that was meant"),
    (rb"\x7fELF", "an executable or a library"),
    (rb"\x1f\x8b", "a gzip archive"),
)


def open_source(source: Source, *, name: str | None, wanted: str) -> tuple[memoryview, str | None]:
    """The read-only bytes of `source`, and what messages call it: `name`, else its path."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, label = memoryview(source).cast("B").toreadonly(), name
    else:
        label = name or os.fspath(source)
        data = _map(os.fspath(source), label, wanted)
    if not data:
        raise InvalidProgram(f"not {wanted}: it is empty", path=label)
    has_read(len(data))
    return data, label


def fail_foreign(data: memoryview, path: str | None, wanted: str) -> NoReturn:
    """Says what a file without the wanted magic looks like."""
    head = bytes(data[:256])
    for start, what in _LOOKS:
        if re.match(start, head, re.DOTALL):
            raise InvalidProgram(f"not {wanted}: this looks like {what}", offset=0, path=path)
    raise InvalidProgram(f"not {wanted}: it starts with {head[:8].hex(' ')}", offset=0, path=path)


def _map(path: str, label: str, wanted: str) -> memoryview:
    kind = os.stat(path).st_mode
    if not stat.S_ISREG(kind):
        if wanted == PROGRAM and stat.S_ISDIR(kind) and not os.path.exists(os.path.join(path, "config.json")):
            reason = "has no config.json: give a program (.pte) or the folder of a Hugging Face checkpoint"
            raise InvalidProgram(f"{label} {reason}")
        what = "a directory" if stat.S_ISDIR(kind) else "not a regular file"
        raise InvalidProgram(f"not {wanted}: it is {what}", path=label)
    file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed with the mapping)
    size = os.fstat(file.fileno()).st_size
    if size <= SMALL:
        with file:
            return memoryview(file.read(size))
    found = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    view = memoryview(found)
    start = _address(view)
    for gone in [start for start, other in _files.items() if other.mapped() is None]:
        _files.pop(gone).file.close()
    _files[start] = _File(size, file, label, ref(found))
    return view


class _File(NamedTuple):
    size: int
    file: FileIO
    label: str
    mapped: ref[mmap.mmap]  # without a callback: an interrupt that arrives in one is lost


_files: dict[int, _File] = {}  # that are mapped, or were until a moment ago, by address


def _address(view: memoryview | bytes) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def steady(view: memoryview | bytes) -> Iterator[memoryview | bytes]:
    """The same bytes in pieces; those of a mapped file are read from it: InvalidProgram where it has lost them."""
    start = _address(view) if len(view) else 0
    base = next((b for b, f in _files.items() if b <= start < b + f.size and f.mapped() is not None), None)
    if base is None:
        yield view
        return
    (_, file, label, _), nbytes = _files[base], memoryview(view).nbytes
    for done in range(0, nbytes, _PIECE):
        wanted = min(_PIECE, nbytes - done)
        file.seek(start - base + done)
        piece = file.read(wanted)
        if len(piece) < wanted:
            raise InvalidProgram("the file was cut while it was loaded", path=label)
        yield piece
