"""The kinds of a method's items, for reports. Needs no GPU library."""

from __future__ import annotations

from typing import Literal

from ..plan.method import Call, Item, Jump, Run

ItemKind = Literal["plan", "NumPy call", "scalar call", "jump", "move"]


def kind_of(item: Item) -> ItemKind:
    """Return the kind of an item: a plan on the GPU, or a NumPy kernel, scalar arithmetic, jump or move on the host."""
    if isinstance(item, Run):
        return "plan"
    if isinstance(item.instruction, Call):
        from ..portable import PORTABLE

        return "NumPy call" if item.instruction.op in PORTABLE else "scalar call"
    return "jump" if isinstance(item.instruction, Jump) else "move"


def name_of(item: Item) -> str:
    """Return the operator of a call, and the kind of any other item."""
    if isinstance(item, Run) or not isinstance(item.instruction, Call):
        return kind_of(item)
    return item.instruction.op
