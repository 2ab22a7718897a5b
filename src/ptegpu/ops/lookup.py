"""The schema and traits of an operator wherever it runs: those of its GPU rule or, without one, of its NumPy kernel."""

from __future__ import annotations

from ..graph.schema import Schema, Traits
from ..plan.method import Call, Operand
from ..portable import PORTABLE, PRIMS
from .registry import REGISTRY

_NONE = Traits()


def schema_of(op: str) -> Schema | None:
    """Return the parameters of an operator; None if neither the GPU nor the host has it."""
    return REGISTRY.get(op) or PORTABLE.get(op) or PRIMS.get(op)


def facts_of(op: str) -> Traits:
    """Return the traits of an operator; the defaults if neither the GPU nor the host has it."""
    return REGISTRY.get(op) or (PORTABLE[op].facts if op in PORTABLE else _NONE)


def operands(c: Call) -> dict[str, Operand]:
    """Return the arguments of a call by the names of its operator's parameters; empty if it has no schema."""
    schema = schema_of(c.op)
    return schema.operands(c.args) if schema else {}
