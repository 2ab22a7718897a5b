"""What kind of step an item of a method is, for those who report on methods. Needs no GPU library."""

from __future__ import annotations

from typing import Literal

from ..plan.method import Call, Item, Jump, Run

Kind = Literal["plan", "NumPy call", "scalar call", "jump", "move"]


def kind_of(item: Item) -> Kind:
    """Return what an item is: a plan of the GPU; or, on the host, a NumPy kernel, scalar arithmetic, a jump, a move."""
    if isinstance(item, Run):
        return "plan"
    if isinstance(item.instruction, Call):
        from ..portable import PORTABLE

        return "NumPy call" if item.instruction.op in PORTABLE else "scalar call"
    return "jump" if isinstance(item.instruction, Jump) else "move"


def name_of(item: Item) -> str:
    """Return the operator of a call; the kind of anything else."""
    if isinstance(item, Run) or not isinstance(item.instruction, Call):
        return kind_of(item)
    return item.instruction.op
