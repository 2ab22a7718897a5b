"""The graph that will run: tensors, symbolic ints and nodes in order, independent of WebGPU and of files.

A graph is in single-assignment form: a tensor is an input, a constant, a state, or the output of exactly one node.
A state is the exception: it keeps its value between runs. A node that writes a state in place names it in `mutates`.
A state that ordinary nodes compute a new value for has it in `Graph.writebacks`, copied when the run ends. Sizes are
live: `Tensor.shape` is the shape in the current call, at most `max_shape`.
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
    """A tensor value. Elements are contiguous in the live shape; `dtype` is the type on the GPU."""

    name: str
    dtype: DType
    max_shape: Shape
    kind: Kind = "temp"
    data: np.ndarray | None = None  # a constant's elements, or a state's initial ones (None: zeros)
    shape: Shape = ()
    parts: tuple[tuple[int, Tensor], ...] = ()  # a constant above the binding limit: (first row, its rows)

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
        return self.dtype.nbytes(self.numel)

    @property
    def max_nbytes(self) -> int:
        return self.dtype.nbytes(math.prod(self.max_shape))

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
    name: str  # its origin, for messages: "aten.add.Tensor #12"
    mutates: tuple[Tensor, ...] = ()

    def values(self) -> Iterator[Value]:
        """Yield the tensors and symbolic ints among the arguments, lists flattened."""
        return flatten(self.args)

    @property
    def members(self) -> tuple[Node, ...]:
        """Return the nodes that a pass fused into this one, in order."""
        return getattr(self.op.steps, "members", ())

    def lines(self, indent: str = "  ") -> list[str]:
        """Return lines that show the node and, indented, its members."""
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
        """Return every tensor, in order of first appearance."""
        values: list[Value] = [*self.inputs, *(v for n in self.nodes for v in (*n.values(), *n.outs))]
        values += [*flatten(tuple(self.outputs)), *(v for pair in self.writebacks for v in pair)]
        return list(dict.fromkeys(v for v in values if isinstance(v, Tensor)))

    def __repr__(self) -> str:
        lines = [f"graph {self.name}({', '.join(map(repr, self.inputs))})"]
        lines += [line for n in self.nodes for line in n.lines()]
        lines += [f"  {s!r} <- {v!r}" for s, v in self.writebacks]
        return "\n".join([*lines, f"  return {self.outputs!r}"])


def flatten(args: tuple[Arg, ...]) -> Iterator[Value]:
    """Yield the tensors and symbolic ints in an argument tuple, depth first."""
    for a in args:
        if isinstance(a, Tensor | Sym):
            yield a
        elif isinstance(a, tuple):
            yield from flatten(a)
