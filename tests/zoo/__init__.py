"""Every tiny model with random weights that tests use, in one table: its kind, its name, its builder, its inputs.

A kind is a file of this folder with a table `SPECIMENS`: a model is a line there, a kind a file and a line here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from .specimen import Specimen

KINDS = {
    "modules": "plain PyTorch: vision, text, sound, states, branches",
    "language": "a language model that writes its cache itself",
    "families": "a family of language models, as transformers write it",
    "checkpoints": "checkpoints of some families as older transformers wrote them, made without transformers",
    "seeing": "language models that see",
    "hearing": "Whisper",
    "tasks": "a model for each task of `ptegpu export hf`",
    "architectures": "whatever docs/models.md lists",
}
_FOLDERS = tempfile.TemporaryDirectory(prefix="zoo-")


def specimens(kind: str) -> Mapping[str, Specimen]:
    """Return the models of a kind by name; import their dependencies, but build none."""
    return import_module(f"tests.zoo.{kind}").SPECIMENS


@cache
def folder(kind: str, name: str) -> Path:
    """Return the folder of a model as on the Hub, written once per process. Copy it to change it."""
    write = specimens(kind)[name].write
    assert write is not None, f"{kind} {name} has no folder"
    path = Path(_FOLDERS.name) / kind / name
    path.mkdir(parents=True)
    write(path)
    return path
