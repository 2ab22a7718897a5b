"""A `Bundle` is a program compiled: its plans, and the outer program around them, as plain data.

An outer program is a list of items: runs of plans, and what the host does between them. Slots (`Var`) hold values from
one item to the next; states keep theirs from one call to the next. Several methods, and the same methods for several
targets, share the bytes of their constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..format import Program
from ..graph.linear import Call, Instruction, Jump, Operand, Var
from .plan import Plan
from .target import Target


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """A plan, with the slots that it takes and gives; the host looks at the outputs in `read`.

    `exact` computes the same outputs on the host, for int64 inputs beyond 32 bits; empty: such inputs are refused.
    """

    plan: int  # index into Outer.plans
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    read: tuple[int, ...]
    exact: tuple[Host, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Host:
    """One instruction of the host; the target of a jump is an item."""

    instruction: Instruction
    by_size: bool = False  # its results are the same in every call with inputs of the same sizes
    by_shape: bool = False  # nothing but the shapes of its operands is asked of it


Item: TypeAlias = Run | Host


@dataclass(frozen=True, eq=False, slots=True)
class Outer:
    """A method: its signature, its items, and the plans that they run."""

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    input_tree: str
    output_tree: str
    items: tuple[Item, ...]
    plans: tuple[Plan, ...]
    states: tuple[Var, ...]  # that do not live inside one plan
    kept: tuple[Var, ...]  # of what depends on sizes only, the slots that anything else reads
    given: tuple[Var, ...]  # inputs that no item writes

    @property
    def branch(self) -> int:
        """The first item that may skip others."""
        jumps = (k for k, i in enumerate(self.items) if isinstance(i, Host) and isinstance(i.instruction, Jump))
        return next(jumps, len(self.items))

    @property
    def on_host(self) -> tuple[str, ...]:
        """The operators that the host runs, in order: a runner needs a NumPy kernel or a primitive for each."""
        host = (i.instruction for i in self.items if isinstance(i, Host))
        return tuple(i.op for i in host if isinstance(i, Call))


@dataclass(frozen=True, eq=False)
class Bundle:
    """The methods of a program for one or more targets. `file` says what the program told about itself.

    `planners` are there where the program was compiled in this process: they trace a plan for sizes that it lacks.
    """

    file: Program
    targets: tuple[Target, ...]
    methods: tuple[Mapping[str, Outer], ...]  # for each target
    planners: Mapping[tuple[str, int], Any] = field(
        default_factory=dict
    )  # of the first target: (method, plan) → Planner

    def outers(self, target: Target) -> Mapping[str, Outer]:
        """The methods for the first target that `target` can run; LimitExceeded, with what it lacks, without one.

        On a software adapter, those made for one come first; elsewhere they come last.
        """
        from ..errors import LimitExceeded

        variants = zip(self.targets, self.methods, strict=True)
        lacks: list[str] = []
        for made, methods in sorted(variants, key=lambda v: v[0].software != target.software):
            missing = made.lacks(target)
            if not missing:
                return methods
            lacks.append(f"{made.name}: {missing}")
        raise LimitExceeded(f"the bundle has nothing that {target.name} can run ({'; '.join(lacks)})")

    def planner(self, outer: Outer, plan: int) -> Any:
        """What traces a plan of a method further; None where it was not compiled here."""
        return self.planners.get((outer.name, plan)) if self.methods[0].get(outer.name) is outer else None

    def save(self, path: Any) -> None:
        """Write one file that `ptegpu.load` takes."""
        from .save import save

        save(self, path)

    @staticmethod
    def load(path: Any) -> Bundle:
        """The bundle that `save` wrote; InvalidProgram if it is none."""
        from .read import load

        return load(path)
