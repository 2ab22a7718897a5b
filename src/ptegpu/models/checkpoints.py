"""Checkpoint folders where a program is wanted: each is exported once, and kept in the cache until it changes.

Next to the files of a program is one with their sums. Whatever does not agree with it is made again.
"""

from __future__ import annotations

import json
import os
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import ptegpu

from .. import files
from ..errors import ExportError, InvalidInput
from ..progress import Progress, silent

FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*/config.json")
SUMS = ".sums.json"
SPEECH = "whisper"
STARTING = "Starting PyTorch"  # the first phase of an export


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
    """Return the files of a program: its own, those of its tokenizer, the sums."""
    return [path for path in target.parent.iterdir() if _belongs(path, target)]


def _is_intact(target: Path) -> bool:
    """Return whether all files of a program are there and as they were written, and no others."""
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
    progress(STARTING, 0, 1)
    from ..export import export_hf, export_llm, export_speech, is_decoder

    progress(STARTING, 1, 1)
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
