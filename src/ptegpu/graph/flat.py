"""A method as one list of operator calls: delegates inlined, scalars and lists resolved, in-place writes explicit.

Instructions read and write slots, as in the file; single assignment comes later, when stretches of calls become graphs.
A constant that some instruction writes is a state: it keeps its value between calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..plan.method import Call, Instruction, Operand


@dataclass(slots=True)
class FlatMethod:
    name: str
    inputs: list[Operand] = field(default_factory=list)  # a Var, or the traced value a scalar input must equal
    outputs: list[Operand] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    folded: list[Call] = field(default_factory=list)  # computed at load, and removed from the code
    input_tree: str = ""
    output_tree: str = ""
