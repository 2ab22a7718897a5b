"""What will run: tensors, symbolic ints, and nodes in order. Nothing of WebGPU, nothing of files.

A graph is in single-assignment form: a tensor is an input, a constant, a state, or the output of exactly one node.
State is the exception that the outside sees: it keeps its value between runs. A node that writes a state in place
names it in `mutates`; a state that got a new value from ordinary nodes has it in `Graph.writebacks`, copied when the
run ends. Sizes are live: `Tensor.shape` is the shape of the current call, never above `max_shape`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ..dtypes import DType

if TYPE_CHECKING:
    from ..ops.registry import OpDef

Shape: TypeAlias = tuple[int, ...]
Kind = Literal["input", "constant", "state", "temp"]


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor value. Elements are contiguous in the live shape; `dtype` is the one it has on the GPU."""

    name: str
    dtype: DType
    max_shape: Shape
    kind: Kind = "temp"
    data: np.ndarray | None = None  # a constant's elements, or a state's first ones (None: zeros)
    shape: Shape = ()
    parts: tuple[tuple[int, Tensor], ...] = ()  # a constant above the binding limit: (first row, rows) pieces

    def __post_init__(self) -> None:
        self.shape = self.shape or self.max_shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size

    @property
    def max_nbytes(self) -> int:
        return math.prod(self.max_shape) * self.dtype.size

    def __repr__(self) -> str:
        return f"{self.name}:{self.dtype.value}{list(self.shape)}"


@dataclass(eq=False, slots=True)
class Sym:
    """A symbolic int: known to the host before a run, readable by kernels during it."""

    name: str
    value: int = 0

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __repr__(self) -> str:
        return f"{self.name}={self.value}"


Value: TypeAlias = Tensor | Sym
Arg: TypeAlias = "Tensor | Sym | int | float | bool | str | None | tuple[Arg, ...]"


@dataclass(eq=False, slots=True)
class Node:
    """One operator applied to arguments in the order of its schema."""

    op: OpDef
    args: tuple[Arg, ...]
    outs: tuple[Value, ...]
    name: str  # where it came from, for messages: "aten.add.Tensor #12"
    mutates: tuple[Tensor, ...] = ()

    def values(self) -> Iterator[Value]:
        """The tensors and symbolic ints among the arguments, lists flattened."""
        return flatten(self.args)

    @property
    def members(self) -> tuple[Node, ...]:
        """The nodes that a pass made it of, in order."""
        return getattr(self.op.steps, "members", ())

    def lines(self, indent: str = "  ") -> list[str]:
        """It and, further in, what it was made of."""
        return [f"{indent}{self!r}", *(line for m in self.members for line in m.lines(f"{indent}  "))]

    def __repr__(self) -> str:
        return f"{', '.join(map(repr, self.outs))} = {self.op.name}({', '.join(map(repr, self.args))})"


@dataclass(slots=True)
class Graph:
    name: str
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Arg] = field(default_factory=list)  # tensors, symbolic ints, or plain scalars
    nodes: list[Node] = field(default_factory=list)
    writebacks: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (state, its value after the run)

    def tensors(self) -> list[Tensor]:
        """Every tensor, in order of first appearance."""
        seen: dict[Tensor, None] = {}
        for v in [
            *self.inputs,
            *(v for n in self.nodes for v in (*n.values(), *n.outs)),
            *flatten(tuple(self.outputs)),
        ]:
            if isinstance(v, Tensor):
                seen.setdefault(v)
        for state, value in self.writebacks:
            seen.setdefault(state)
            seen.setdefault(value)
        return list(seen)

    def __repr__(self) -> str:
        lines = [f"graph {self.name}({', '.join(map(repr, self.inputs))})"]
        lines += [line for n in self.nodes for line in n.lines()]
        lines += [f"  {s!r} <- {v!r}" for s, v in self.writebacks]
        return "\n".join([*lines, f"  return {self.outputs!r}"])


def flatten(args: tuple[Arg, ...]) -> Iterator[Value]:
    """Tensors and symbolic ints in an argument tuple, depth first."""
    for a in args:
        if isinstance(a, Tensor | Sym):
            yield a
        elif isinstance(a, tuple):
            yield from flatten(a)
