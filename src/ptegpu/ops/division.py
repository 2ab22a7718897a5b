"""Division that rounds, and its remainder. A kernel cannot raise: dividing an integer by zero gives some number."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidProgram
from ..graph.graph import Tensor
from ..plan.target import Target
from . import spans
from .elementwise import Bodies, binary, combine, floats
from .prefix_stable import pointwise
from .registry import Number, Steps, op

BY_ZERO = "Unlike PyTorch, which raises, dividing an integer by zero gives some number: a kernel cannot raise."
EXACT = "Unlike PyTorch on a CPU, whose vectorised float32 gives NaN there, large quotients leave the exact remainder."

FMOD = {"f32": "fmod(a, b)", "i32": "whole_fmod(a, b)"}
REMAINDER = {"f32": "remainder(a, b)", "i32": "whole_remainder(a, b)"}
FLOOR = {"f32": "floor_quotient(a, b)", "i32": "whole_floor_quotient(a, b)"}
ROUNDED: Mapping[str | None, Bodies] = {
    None: floats("a / b"),
    "floor": FLOOR,
    "trunc": {"f32": "trunc_quotient(a, b)", "i32": "a / b"},
}


binary("aten.fmod", FMOD, scalar="Scalar", differs=f"{BY_ZERO}\n\n{EXACT}")
binary("aten.remainder", REMAINDER, scalar="Scalar", differs=f"{BY_ZERO}\n\n{EXACT}", span=spans.remainder)
binary("aten.floor_divide", FLOOR, tensor="default", scalar="Scalar", differs=BY_ZERO, span=spans.divided)


@op("aten.div.Tensor_mode", "aten.div.Scalar_mode", span=spans.divided, prefix=pointwise, differs=BY_ZERO)
def div_mode(
    x: Tensor, y: Tensor | Number, rounding_mode: str | None, *, outs: tuple[Tensor, ...], target: Target
) -> Steps:
    if rounding_mode not in ROUNDED:
        raise InvalidProgram(f"invalid rounding mode '{rounding_mode}': expected floor, trunc or None")
    yield from combine("div", ROUNDED[rounding_mode], [x, y], outs[0], target)


@op("aten.remainder.Scalar_Tensor", differs=BY_ZERO)
def scalar_remainder(x: Number, y: Tensor, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    yield from combine("remainder", REMAINDER, [x, y], outs[0], target)
