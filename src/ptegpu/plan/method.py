"""A compiled method: a list of items, which are runs of plans and host instructions between them.

A `Var` is a slot that items read and write. It keeps its value from one item to the next; a state keeps it from one
call to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ..dtypes import DType
from .plan import Plan


@dataclass(eq=False, slots=True)
class Var:
    """A slot for a tensor, or, without dtype, for a scalar that is only known when the program runs."""

    name: str
    dtype: DType | None
    sizes: tuple[int, ...] = ()  # upper bounds if `dynamic`
    dynamic: bool = False
    kind: Literal["temp", "input", "constant", "state"] = "temp"
    data: np.ndarray | None = None  # a constant's elements, a state's initial ones (None: zeros)
    initial: int | float | bool | str | None = None  # a scalar's value in every call until it is written
    narrowed: bool = False  # int32 in a delegate's file, which may stand for int64

    def __repr__(self) -> str:
        return f"{self.name}:{self.dtype.value}{list(self.sizes)}" if self.dtype else self.name


Operand: TypeAlias = "Var | int | float | bool | str | None | tuple[Operand, ...]"


def variables(operand: Operand) -> list[Var]:
    """Return the slots in an operand, lists flattened."""
    if isinstance(operand, Var):
        return [operand]
    if isinstance(operand, tuple):
        return [v for item in operand for v in variables(item)]
    return []


@dataclass(frozen=True, slots=True)
class Call:
    """An operator, by its functional name, applied in schema order."""

    op: str
    args: tuple[Operand, ...]
    outs: tuple[Var, ...]
    where: str  # "aten.add.Tensor #12 of delegate 0"


@dataclass(frozen=True, slots=True)
class Move:
    source: Operand
    target: Var


@dataclass(frozen=True, slots=True)
class Jump:
    """Go to instruction `target` if the condition is false (a tensor: if any element is)."""

    condition: Operand
    target: int


Instruction: TypeAlias = Call | Move | Jump


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """A run of a plan, with its input and output slots; the host reads the outputs in `read`.

    `exact` computes the same outputs on the host for int64 inputs beyond 32 bits; if empty, such inputs are refused.
    """

    plan: int  # index into CompiledMethod.plans
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    read: tuple[int, ...]
    exact: tuple[Host, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Host:
    """An instruction for the host; the target of a jump is an item."""

    instruction: Instruction
    by_size: bool = False  # its results are the same in every call with inputs of the same sizes
    by_shape: bool = False  # it only reads the shapes of its operands


Item: TypeAlias = Run | Host


@dataclass(frozen=True, eq=False, slots=True)
class CompiledMethod:
    """A method: its signature, its items, and the plans they run."""

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    input_tree: str
    output_tree: str
    items: tuple[Item, ...]
    plans: tuple[Plan, ...]
    states: tuple[Var, ...]  # states that are not inside one plan
    kept: tuple[Var, ...]  # slots that depend on sizes only and that other items read
    given: tuple[Var, ...]  # inputs that no item overwrites

    @property
    def branch(self) -> int:
        """Return the first item that may skip others."""
        jumps = (k for k, i in enumerate(self.items) if isinstance(i, Host) and isinstance(i.instruction, Jump))
        return next(jumps, len(self.items))

    @property
    def on_host(self) -> tuple[str, ...]:
        """Return the operators that the host runs, in order; a runner needs a NumPy kernel or a primitive for each."""
        host = (i.instruction for i in self.items if isinstance(i, Host))
        return tuple(i.op for i in host if isinstance(i, Call))
