"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ExportError


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises if no file can be written there: what takes long to make asks first."""
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise ExportError(f"{target} cannot be written: there is no folder {folder}")
    if target.is_dir():
        raise ExportError(f"{target} is a folder; give the name of a file in it, as {target / 'model.pte'}")
    new = _is_special(target) or os.access(target.resolve().parent, os.W_OK | os.X_OK)
    if not new or (target.exists() and not os.access(target, os.W_OK)):
        raise ExportError(f"{target} cannot be written: permission denied")


def write(path: str | os.PathLike[str], data: bytes) -> None:
    """Replaces the file at once, so that no reader and no failure ever sees a part of it."""
    target = Path(path).resolve()
    if _is_special(target):
        target.write_bytes(data)
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _is_special(target: Path) -> bool:
    """A device or a pipe, such as /dev/null."""
    return target.exists() and not target.is_file()
