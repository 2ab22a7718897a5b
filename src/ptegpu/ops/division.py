"""Division that rounds, and its remainder. A kernel cannot raise: an integer divided by zero gives some number."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidProgram
from ..graph.graph import Tensor
from ..plan.target import Target
from . import spans
from .elementwise import Bodies, binary, combine, floats
from .prefix_stable import pointwise
from .registry import Number, Steps, op

BY_ZERO = "Unlike PyTorch, which raises, an integer divided by zero gives some number: a kernel cannot raise."
BY_LITTLE = (
    "Unlike PyTorch on a CPU, whose vectorised float32 gives NaN there, large quotients leave the exact remainder."
)
REST = f"{BY_ZERO}\n\n{BY_LITTLE}"

FMOD = {"f32": "fmod(a, b)", "i32": "whole_fmod(a, b)"}
REMAINDER = {"f32": "remainder(a, b)", "i32": "whole_remainder(a, b)"}
FLOOR = {"f32": "floor_quotient(a, b)", "i32": "whole_floor_quotient(a, b)"}
ROUNDED: Mapping[str | None, Bodies] = {
    None: floats("a / b"),
    "floor": FLOOR,
    "trunc": {"f32": "trunc_quotient(a, b)", "i32": "a / b"},
}


binary("aten.fmod", FMOD, scalar="Scalar", doc=REST)
binary("aten.remainder", REMAINDER, scalar="Scalar", doc=REST, span=spans.remainder)
binary("aten.floor_divide", FLOOR, tensor="default", scalar="Scalar", doc=BY_ZERO, span=spans.divided)


def _rounded(mode: str | None) -> Bodies:
    if mode not in ROUNDED:
        raise InvalidProgram(f"rounding mode '{mode}' is neither floor nor trunc")
    return ROUNDED[mode]


@op("aten.div.Tensor_mode", span=spans.divided, prefix=pointwise)
def div_mode(x: Tensor, y: Tensor, rounding_mode: str | None, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    """Unlike PyTorch, which raises, an integer divided by zero gives some number: a kernel cannot raise."""
    yield from combine("div", _rounded(rounding_mode), [x, y], outs[0], target)


@op("aten.div.Scalar_mode", span=spans.divided, prefix=pointwise)
def div_scalar_mode(
    x: Tensor, y: Number, rounding_mode: str | None, *, outs: tuple[Tensor, ...], target: Target
) -> Steps:
    """Unlike PyTorch, which raises, an integer divided by zero gives some number: a kernel cannot raise."""
    yield from combine("div", _rounded(rounding_mode), [x, y], outs[0], target)


@op("aten.remainder.Scalar_Tensor")
def scalar_remainder(x: Number, y: Tensor, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    """Unlike PyTorch, which raises, an integer divided by zero gives some number: a kernel cannot raise."""
    yield from combine("remainder", REMAINDER, [x, y], outs[0], target)
