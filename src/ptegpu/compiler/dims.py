"""Dimensions and elements that a program names with constants: checked at load, since no size of a call mends them."""

from __future__ import annotations

from ..errors import InvalidProgram, PtegpuError
from ..graph.flat import FlatMethod
from ..graph.graph import Tensor
from ..ops import REGISTRY
from ..plan.method import Call, Var, variables


def check_dims(flat: FlatMethod, path: str | None) -> None:
    """Raise InvalidProgram for a symbolic int of a dimension or an element that a tensor lacks at its largest shape."""
    for call in flat.code:
        if isinstance(call, Call) and len(call.args) > 1 and not variables(call.args[1:]):
            _check(call, path)


def _check(call: Call, path: str | None) -> None:
    definition, first = REGISTRY.get(call.op), call.args[0]
    if definition is None or definition.sym is None or Tensor not in definition.parameters[0].kinds:
        return
    if not isinstance(first, Var) or first.dtype is None:
        return
    try:
        definition.sym(*definition.bind((Tensor(first.name, first.dtype, first.sizes), *call.args[1:])))
    except PtegpuError as e:
        raise InvalidProgram(f"{call.where}: {e}", path=path) from None
