"""A `Bundle` is a program compiled: its methods with their plans, as plain data.

Several methods, and the same methods for several targets, share the bytes of their constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import LimitExceeded
from ..format import Program
from .method import CompiledMethod
from .target import Target


@dataclass(frozen=True, eq=False)
class Bundle:
    """The methods of a program for one or more targets. `file` says what the program told about itself.

    `planners` are there where the program was compiled in this process: they trace a plan for sizes that it lacks.
    """

    file: Program
    targets: tuple[Target, ...]
    methods: tuple[Mapping[str, CompiledMethod], ...]  # for each target
    planners: Mapping[tuple[str, int], Any] = field(
        default_factory=dict
    )  # of the first target: (method, plan) → Planner

    def methods_for(self, target: Target) -> Mapping[str, CompiledMethod]:
        """The methods for the first target that `target` can run; LimitExceeded, with what it lacks, without one.

        On a software adapter, those made for one come first; elsewhere they come last.
        """
        variants = zip(self.targets, self.methods, strict=True)
        lacks: list[str] = []
        for made, methods in sorted(variants, key=lambda v: v[0].software != target.software):
            missing = made.lacks(target)
            if not missing:
                return methods
            lacks.append(f"{made.name}: {missing}")
        raise LimitExceeded(f"the bundle has nothing that {target.name} can run ({'; '.join(lacks)})")

    def planner(self, method: CompiledMethod, plan: int) -> Any:
        """What traces a plan of a method further; None where it was not compiled here."""
        return self.planners.get((method.name, plan)) if self.methods[0].get(method.name) is method else None

    def save(self, path: Any) -> None:
        """Write one file that `ptegpu.load` takes."""
        from .save import save

        save(self, path)

    @staticmethod
    def load(path: Any) -> Bundle:
        """The bundle that `save` wrote; InvalidProgram if it is none."""
        from .read import load

        return load(path)
