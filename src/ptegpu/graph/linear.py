"""A method as one list of operator calls: delegates inlined, scalars and lists resolved, in-place writes made visible.

A `Var` is a slot that instructions read and write, as in the file; single assignment comes later, when stretches of
calls become graphs. A constant that some instruction writes is a state: it keeps its value between calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from ..dtypes import DType
from .graph import Shape


@dataclass(eq=False, slots=True)
class Var:
    """A tensor slot, or, without dtype, a slot for a scalar that is known only when the program runs."""

    name: str
    dtype: DType | None
    sizes: Shape = ()  # the maximum, where `dynamic`
    dynamic: bool = False
    kind: Literal["temp", "input", "constant", "state"] = "temp"
    data: np.ndarray | None = None  # a constant's elements, a state's first ones (None: zeros)
    initial: int | float | bool | str | None = None  # of a scalar: what it is in every call until it is written
    narrowed: bool = False  # int32 in a delegate, whose file says that of int64, too

    def __repr__(self) -> str:
        return f"{self.name}:{self.dtype.value}{list(self.sizes)}" if self.dtype else self.name


Operand: TypeAlias = "Var | int | float | bool | str | None | tuple[Operand, ...]"


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


@dataclass(slots=True)
class Linear:
    name: str
    inputs: list[Operand] = field(default_factory=list)  # a Var, or the traced value a scalar input must equal
    outputs: list[Operand] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    folded: list[Call] = field(default_factory=list)  # computed at load, and no longer in the code
    input_tree: str = ""
    output_tree: str = ""


def variables(operand: Operand) -> list[Var]:
    """The slots in an operand, lists flattened."""
    if isinstance(operand, Var):
        return [operand]
    if isinstance(operand, tuple):
        return [v for item in operand for v in variables(item)]
    return []
