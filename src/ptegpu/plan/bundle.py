"""A `Bundle`: a compiled program, its methods with their plans, as plain data; and the constants of its file format.

Several methods, and the same methods for several targets, share the bytes of their constants.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ..errors import InvalidProgram, LimitExceeded
from ..format import ProgramFile
from ..format.pte import BoolList, FloatList, IntList, TensorList
from .method import CompiledMethod
from .plan import Binding, Choice, Copy, Patch, PlannedDispatch
from .target import Target

MAGIC = b"ptegpu\x00B"
FORMAT = "ptegpu-bundle"
VERSION, WEB_VERSION = 1, 2  # of the file, and of the folder
HEAD = len(MAGIC) + 8 + 32
ALIGN = 64
MANIFEST = "bundle.json"
ARRAYS = (Binding, Patch, PlannedDispatch, Choice, Copy)  # frequent records, stored as lists of their fields
LISTS: dict[str, Any] = {"ints": IntList, "floats": FloatList, "bools": BoolList, "tensors": TensorList}
TENSOR_FIELDS = ("dtype", "sizes", "dim_order", "dynamic", "bounded", "planned", "name")  # of the program's tensors


@dataclass(frozen=True, eq=False)
class Bundle:
    """The methods of a program for one or more targets. `file` has the program's signatures and metadata."""

    file: ProgramFile
    targets: tuple[Target, ...]
    methods: tuple[Mapping[str, CompiledMethod], ...]  # for each target
    # For the first target, (method, plan) → Planner, which traces a plan at more sizes; empty for a loaded bundle.
    planners: Mapping[tuple[str, int], Any] = field(default_factory=dict)

    def methods_for(self, target: Target) -> Mapping[str, CompiledMethod]:
        """Return the methods for the first target that `target` can run; raise LimitExceeded if it can run none.

        On a software adapter, methods compiled for one come first; elsewhere they come last.
        """
        variants = zip(self.targets, self.methods, strict=True)
        problems: list[str] = []
        for compiled_for, methods in sorted(variants, key=lambda v: v[0].software != target.software):
            missing = compiled_for.lacks(target)
            if not missing:
                return methods
            problems.append(f"{compiled_for.name}: {missing}")
        raise LimitExceeded(f"the bundle has nothing that {target.name} can run ({'; '.join(problems)})")

    def planner(self, method: CompiledMethod, plan: int) -> Any:
        """Return the planner of a method's plan; None unless the method was compiled in this process."""
        return self.planners.get((method.name, plan)) if self.methods[0].get(method.name) is method else None

    def save(self, path: Any) -> None:
        """Write one file that `ptegpu.load` takes."""
        from .save import save

        save(self, path)

    @staticmethod
    def load(path: Any) -> Bundle:
        """Return the bundle that `save` wrote; raise InvalidProgram for any other file."""
        from .read import load

        return load(path)


def find_bundle(source: Any) -> Bundle | None:
    """Load the bundle in a file, a folder or bytes; return None for anything else."""
    return Bundle.load(source) if is_bundle(source) else None


def is_bundle(source: Any) -> bool:
    """Return True if a file or bytes begin like a bundle, or a folder has a bundle's manifest."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(memoryview(source)[: len(MAGIC)]) == MAGIC
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(source)
    try:
        if path.is_dir():
            return (path / MANIFEST).is_file()
        if not path.is_file():
            return False
        with path.open("rb") as f:
            return f.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def damaged(problem: str) -> NoReturn:
    """Raise InvalidProgram for a bundle, with a text that may quote the file."""
    text = " ".join(problem.split())
    raise InvalidProgram(f"the bundle is damaged: {text if len(text) <= 200 else text[:199] + '…'}")
