"""Operator calls put at the end of a method when it is loaded, so that they join its last plan.

    def largest(tail: Tail) -> None:
        (token,) = tail.call("aten.argmax.default", tail.outputs[0], -1, False, gives=[(DType.I32, (1,))])
        tail.outputs = [token]

    program = ptegpu.load("model.pte", append={"forward": largest})

What is no longer an output is not read back from the GPU, and not computed unless something else needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..dtypes import DType
from ..graph.graph import Shape
from ..graph.linear import Call, Linear, Operand, Var, variables


class Tail:
    """The end of a method: its `outputs`, which may be read and replaced, and ways to add inputs and calls.

    `linear` is the whole of it.
    """

    def __init__(self, linear: Linear) -> None:
        self.linear = linear
        self.outputs: list[Operand] = list(linear.outputs)  # a Var has `dtype` and `sizes`, the maximum where `dynamic`

    def input(self, name: str, dtype: DType | None = None, sizes: Shape = (), *, dynamic: bool = False) -> Var:
        """One more input of the method, after those it has; without dtype an int."""
        var = Var(name, dtype, sizes, dynamic or dtype is None, "input")
        self.linear.inputs.append(var)
        return var

    def call(self, op: str, *args: Operand, gives: Sequence[tuple[DType, Shape]]) -> tuple[Var, ...]:
        """An operator of the registry, by its functional name; `gives` are its results at their maximum size."""
        dynamic = any(v.dynamic for v in variables(args))
        number = len(self.linear.code)
        outs = tuple(Var(f"{op} #{number}.{k}", dtype, sizes, dynamic) for k, (dtype, sizes) in enumerate(gives))
        self.linear.code.append(Call(op, args, outs, f"{op} #{number}, appended"))
        return outs


Append: TypeAlias = Callable[[Tail], None]


def append_calls(linear: Linear, append: Append) -> None:
    """Let `append` add to the method and say what its outputs are."""
    tail = Tail(linear)
    append(tail)
    linear.outputs, linear.output_tree = list(tail.outputs), ""  # which grouped those that it had
