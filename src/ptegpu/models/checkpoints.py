"""Checkpoint folders in place of programs: each is exported once, and cached until it changes.

A file beside those of a program has their checksums. If any file differs, the checkpoint is exported again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from .. import __version__, files
from ..errors import ExportError, InvalidInput, UnsupportedProgram
from ..progress import Progress, silent
from .kinds import KINDS, architecture, kind_of_folder, resolve

FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*/config.json")
SUMS = ".sums.json"
STARTING = "Starting PyTorch"  # the first phase of an export


def is_checkpoint(path: Any) -> bool:
    """Return whether it is a checkpoint folder in the layout of the Hugging Face Hub."""
    return isinstance(path, str | os.PathLike) and (Path(path) / "config.json").is_file()


def check_folder_kind(folder: Path, kinds: Sequence[str], expected: str = "") -> None:
    """Raise UnsupportedProgram if a folder is exported to a program of another kind, by its `config.json` alone."""
    kind = kind_of_folder(folder)
    if kind not in kinds:
        settings = files.read_object(folder / "config.json", ExportError)
        name = architecture(settings) or settings.get("model_type") or "no architecture"
        noun, expected = KINDS[kind].noun, expected or KINDS[kinds[0]].noun
        raise UnsupportedProgram(f"{folder} is a checkpoint of {name}, which becomes {noun}, not {expected}")


def exported_once(path: Any, progress: Progress = silent, kinds: Sequence[str] = ()) -> Any:
    """Return the program of a checkpoint folder, exporting it if needed; anything else is returned as it is.

    With `kinds`, a folder that is exported to a program of another kind is refused.
    """
    if not is_checkpoint(path):
        return path
    if kinds:
        check_folder_kind(Path(path), kinds)
    cache = files.cache_folder()
    if cache is None:
        raise InvalidInput(f"{path} is a folder, and PTEGPU_CACHE=off: export it to a file first (`ptegpu export`)")
    folder = Path(path).resolve()
    own = f"{folder.name}-{_digest(str(folder))}"
    sources = sorted(p for pattern in FILES for p in folder.glob(pattern))
    versions = [[str(p.relative_to(folder)), (s := p.stat()).st_size, s.st_mtime_ns] for p in sources]
    target = cache / f"{own}-{_digest(__version__, *versions)}.pte"
    if not _is_intact(target):
        try:
            cache.mkdir(parents=True, exist_ok=True)
            for path in _entry(target):
                files.remove(path)
        except OSError as e:
            raise ExportError(f"{cache} cannot be written ({e.strerror}): set PTEGPU_CACHE to another folder") from e
        _export(folder, target, progress)
        sums = {path.name: _sum(path) for path in _entry(target)}
        files.keep(target.with_suffix(SUMS), json.dumps(sums, indent=2).encode())
        for old in [p for p in cache.iterdir() if p.name.startswith(f"{own}-") and not _belongs(p, target)]:
            files.remove(old)
    return target


def _belongs(path: Path, target: Path) -> bool:
    return path.name.startswith(f"{target.stem}.")


def _entry(target: Path) -> list[Path]:
    """Return the files of a program: its own, those of its tokenizer, and the checksums."""
    return [path for path in target.parent.iterdir() if _belongs(path, target)]


def _is_intact(target: Path) -> bool:
    """Return whether all files of a program exist unchanged, and no others."""
    try:
        sums = json.loads(files.read_kept(target.with_suffix(SUMS), ExportError))
        paths = [path for path in _entry(target) if path != target.with_suffix(SUMS)]
        return target.name in sums and sums == {path.name: _sum(path) for path in paths}
    except (ExportError, OSError, ValueError, TypeError, RecursionError):
        return False


def _sum(path: Path) -> str:
    files.check_kept(path, ExportError)
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _export(folder: Path, target: Path, progress: Progress) -> None:
    exporter = KINDS[kind_of_folder(folder)].exporter
    assert exporter is not None
    progress(STARTING, 0, 1)
    export = resolve(exporter)
    progress(STARTING, 1, 1)
    export(folder, target, progress=progress)


def _digest(*values: Any) -> str:
    return sha256(json.dumps(values).encode()).hexdigest()[:16]
