"""Checkpoint folders where a program is wanted: each is exported once, and kept in the cache until it changes."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import ptegpu

from . import files
from .errors import ExportError, InvalidInput
from .gpu.pipelines import Progress, silent

FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*/config.json")
SPEECH = "whisper"


def is_checkpoint(path: Any) -> bool:
    """Whether it is a folder as the Hugging Face Hub has them."""
    return isinstance(path, str | os.PathLike) and (Path(path) / "config.json").is_file()


def program_of(path: Any, progress: Progress = silent) -> Any:
    """The program made of a checkpoint folder, which is made now unless it was before; all else is as it was."""
    if not is_checkpoint(path):
        return path
    cache = files.cache_folder()
    if cache is None:
        raise InvalidInput(f"{path} is a folder, and PTEGPU_CACHE=off: export it to a file first (`ptegpu export`)")
    folder = Path(path).resolve()
    own = f"{folder.name}-{_digest(str(folder))}"
    target = cache / f"{own}-{_digest(ptegpu.__version__, *_facts(folder))}.pte"
    if not target.is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ExportError(f"{cache} cannot be written ({e.strerror}): set PTEGPU_CACHE to another folder") from e
        _export(folder, target, progress)
        for old in (p for p in cache.glob(f"{own}-*") if not p.name.startswith(target.stem)):
            old.unlink(missing_ok=True)
    return target


def _export(folder: Path, target: Path, progress: Progress) -> None:
    progress("Starting PyTorch", 0, 1)
    from .export import export_hf, export_llm, export_speech, is_decoder

    progress("Starting PyTorch", 1, 1)
    if files.read_object(folder / "config.json", ExportError).get("model_type") == SPEECH:
        export_speech(folder, target, progress=progress)
    elif is_decoder(folder):
        export_llm(folder, target, progress=progress)
    else:
        export_hf(folder, target, progress=progress)


def _facts(folder: Path) -> list[Any]:
    """What changes when a file does."""
    found = sorted(p for pattern in FILES for p in folder.glob(pattern))
    return [[str(p.relative_to(folder)), (s := p.stat()).st_size, s.st_mtime_ns] for p in found]


def _digest(*facts: Any) -> str:
    return sha256(json.dumps(facts).encode()).hexdigest()[:16]
