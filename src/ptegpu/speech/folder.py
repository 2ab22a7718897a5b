"""Checkpoint folders, each exported once into a cache: `PTEGPU_CACHE`, or `ptegpu` among the user's caches."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import ptegpu

from ..gpu.pipelines import Progress

FILES = ("*.json", "*.safetensors")


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    return Path(path).is_dir() and (Path(path) / "config.json").is_file()


def cache() -> Path:
    """The folder; it need not exist."""
    given = os.environ.get("PTEGPU_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ptegpu"


def exported(folder: Path, progress: Progress) -> Path:
    """The program made of a folder; made now if it is not there, or if a file of the folder changed since."""
    target = cache() / f"{folder.resolve().name}-{_digest(folder.resolve())}.pte"
    if not target.is_file():
        from ..export import export_speech

        target.parent.mkdir(parents=True, exist_ok=True)
        export_speech(folder, target, progress=progress)
    return target


def _digest(folder: Path) -> str:
    files = sorted(p for pattern in FILES for p in folder.glob(pattern))
    facts = [[p.name, (s := p.stat()).st_size, s.st_mtime_ns] for p in files]
    return hashlib.sha256(json.dumps([ptegpu.__version__, str(folder), facts]).encode()).hexdigest()[:16]
