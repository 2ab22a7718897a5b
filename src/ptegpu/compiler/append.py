"""Operator calls appended to a method when it is loaded, as part of its last plan.

    def largest(tail: Tail) -> None:
        (token,) = tail.call("aten.argmax.default", tail.outputs[0], -1, False, gives=[(DType.I32, (1,))])
        tail.outputs = [token]

    program = ptegpu.load("model.pte", append={"forward": largest})

A value that is no longer an output is not read back from the GPU, and only computed if something else needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..dtypes import DType
from ..graph.flat import FlatMethod
from ..graph.graph import Shape
from ..plan.method import Call, Operand, Var, variables


class Tail:
    """The end of a method: its `outputs`, which may be read and replaced, and ways to add inputs and calls."""

    def __init__(self, flat: FlatMethod) -> None:
        self.flat = flat
        self.outputs: list[Operand] = list(flat.outputs)  # a Var has `dtype` and `sizes`, upper bounds if `dynamic`

    def input(self, name: str, dtype: DType | None = None, sizes: Shape = (), *, dynamic: bool = False) -> Var:
        """Add an input after those of the method; without dtype it is an int."""
        var = Var(name, dtype, sizes, dynamic or dtype is None, "input")
        self.flat.inputs.append(var)
        return var

    def call(self, op: str, *args: Operand, gives: Sequence[tuple[DType, Shape]]) -> tuple[Var, ...]:
        """Add a call of an operator, by its functional name; `gives` has its results at their maximum sizes."""
        dynamic = any(v.dynamic for v in variables(args))
        number = len(self.flat.code)
        outs = tuple(Var(f"{op} #{number}.{k}", dtype, sizes, dynamic) for k, (dtype, sizes) in enumerate(gives))
        self.flat.code.append(Call(op, args, outs, f"{op} #{number}, appended"))
        return outs


Append: TypeAlias = Callable[[Tail], None]


def append_calls(flat: FlatMethod, append: Append) -> None:
    """Let `append` add calls to the method and replace its outputs."""
    tail = Tail(flat)
    append(tail)
    flat.outputs, flat.output_tree = list(tail.outputs), ""  # the tree described the old outputs
