"""Atomic writes of files, careful reads of files from others, and the cache folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ExportError, PtegpuError

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
MODEL_OR_SENTENCE = ("config.json", "modules.json")  # the latter lists the parts of a sentence-transformers model
LARGEST = 1 << 28  # of a text or of JSON

Errors = type[PtegpuError]


def check_regular(path: str | os.PathLike[str], error: Errors) -> None:
    """Raise for folders, pipes and devices, which reading may never end. Raise FileNotFoundError for a missing file."""
    kind = os.stat(path).st_mode
    if not stat.S_ISREG(kind):
        raise error(f"{os.fspath(path)} is {'a folder' if stat.S_ISDIR(kind) else 'not a regular file'}")


def read(path: str | os.PathLike[str], error: Errors, max_bytes: int = LARGEST) -> bytes:
    """Return the bytes of a file that has at most `max_bytes`."""
    check_regular(path, error)
    with open(path, "rb") as file:
        data = file.read(min(max_bytes, os.fstat(file.fileno()).st_size) + 1)
    if len(data) > max_bytes:
        raise error(f"{os.fspath(path)} has more than {max_bytes:,} bytes")
    return data


def check_checkpoint(folder: Path, error: Errors, names: tuple[str, ...] = ("config.json",)) -> None:
    """Raise unless the folder exists and holds one of the named files, as checkpoints of the Hugging Face Hub do."""
    if folder.is_dir():
        if not any((folder / name).exists() for name in names):
            raise error(f"{folder} has no config.json: give the folder of a Hugging Face checkpoint")
        return
    name = folder.as_posix()
    if folder.exists():
        raise error(f"{name} is a file: give the folder of a Hugging Face checkpoint")
    if not HUB_ID.fullmatch(name):
        raise error(f"there is no folder {name}")
    local = name.rpartition("/")[2]
    raise error(
        f"there is no folder {name}. If this is a model of the Hugging Face Hub, download it and give the folder "
        f"{local} instead:",
        f"  hf download {name} --local-dir {local}",
    )


def read_kept(path: Path, error: Errors, max_bytes: int = LARGEST) -> bytes:
    """Return the bytes of a file in the cache, without following links or waiting for pipes."""
    check_kept(path, error)
    return read(path, error, max_bytes)


def check_kept(path: Path, error: Errors) -> None:
    """Raise unless this is a regular file, not a link to one."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise error(f"{path} is not a regular file")


def read_text(path: str | os.PathLike[str], error: Errors) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return read(path, error).decode()
    except UnicodeDecodeError as e:
        raise error(f"{os.fspath(path)} is not UTF-8: {e}") from None


def read_object(path: str | os.PathLike[str], error: Errors) -> dict[str, Any]:
    """Return the object of a JSON file."""
    try:
        value = json.loads(read(path, error))
    except PtegpuError:
        raise
    except (ValueError, RecursionError) as e:
        reason = "it is nested too deeply" if isinstance(e, RecursionError) else e
        raise error(f"{os.fspath(path)} is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise error(f"{os.fspath(path)} does not hold a JSON object")
    return value


def check_inside(path: Path, folder: Path, error: Errors) -> None:
    """Raise for a link out of the folder, except into the folder "blobs" of a Hugging Face cache."""
    root = folder.resolve()
    cache = [root.parent.parent / "blobs"] if root.parent.name == "snapshots" else []
    if not any(path.resolve().is_relative_to(allowed) for allowed in (root, *cache)):
        raise error(f"{path} leads out of its folder: replace the link by a copy of its file")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise if the file cannot be written; call this before long work."""
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
    """Replace a file atomically, so no reader ever sees a part of it. Devices and pipes are written into."""
    target = Path(path).resolve()
    with naming(path):
        if _is_special(target):
            target.write_bytes(data)
        else:
            keep(target, data)


def keep(target: Path, data: bytes) -> None:
    """Write a file atomically, replacing any file, link or pipe of its name."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with naming(target):
        part.unlink(missing_ok=True)
        try:
            part.write_bytes(data)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def naming(target: str | os.PathLike[str]) -> Iterator[None]:
    """Name this file in system errors: some name no file, such as a full disk, and others a temporary one."""
    try:
        yield
    except OSError as e:
        if e.errno is None:
            raise
        raise OSError(e.errno, e.strerror, os.fspath(target)) from e


def remove(path: Path) -> None:
    """Delete a file, folder or link; keep the target of a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_special(target: Path) -> bool:
    """Return whether this is a device or a pipe, such as /dev/null."""
    return target.exists() and not target.is_file()


def cache_folder() -> Path | None:
    """Return the folder of files that later processes reuse; None if there is none."""
    if folder := os.environ.get("PTEGPU_CACHE"):
        return None if folder == "off" else Path(folder)
    try:
        home = Path.home()
    except RuntimeError:  # no home folder
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local") / "ptegpu/cache"
    default = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "ptegpu"
