"""Where bytes come from: a mapped file, or memory that the caller holds. Nothing is copied.

A missing path stays `FileNotFoundError`; what is there but cannot be what was asked for raises `InvalidProgram`.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from typing import NoReturn

from ..errors import InvalidProgram

Source = str | os.PathLike[str] | bytes | bytearray | memoryview

PROGRAM = "an ExecuTorch program (.pte)"
DATA = "an ExecuTorch data file (.ptd)"

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
        what = "a directory" if stat.S_ISDIR(kind) else "not a regular file"
        raise InvalidProgram(f"not {wanted}: it is {what}", path=label)
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
