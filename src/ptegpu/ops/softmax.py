"""Softmax along any dimension, in f32. A row that does not fit the registers of a workgroup is cut into pieces."""

from __future__ import annotations

import math

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels import softmax as kernels
from ..kernels.lanes import HELD_COLUMNS, HELD_ROWS, Stage, choose, pieces
from ..kernels.reduce import Quads
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .registry import Dispatch, Out, Rule, Scratch, Steps, define, normalise_dim


def quads_of(length: int, inner: int) -> Quads:
    """Return how rows of `length` elements, `inner` apart, are read in quads."""
    if inner == 1:
        return "along" if length % 4 == 0 else ""
    return "abreast" if inner % 4 == 0 else ""


def softmax(log: bool = False, blank: float = math.nan) -> tuple[Rule, Rule]:
    """Return two rules: with a flag and with a dtype as third argument, which the result's declaration makes redundant.

    `blank` stands for 1/0 in rows of nothing but -inf.
    """

    def flagged(x: Tensor, dim: int, half_to_float: bool, *, target: Target) -> Steps:
        yield from typed(x, dim, target=target)

    def typed(x: Tensor, dim: int, dtype: int | None = None, *, target: Target) -> Steps:
        k = normalise_dim(dim, x.rank)
        out = yield Out(x.shape)
        length = x.shape[k] if x.rank else 1
        inner = math.prod(x.shape[k + 1 :])
        rows = x.numel // length if length else 0
        choice, quads = HELD_ROWS if inner == 1 else HELD_COLUMNS, quads_of(length, inner)
        if quads == "along":
            length //= 4
        elif quads == "abreast":
            inner, rows = inner // 4, rows // 4
        lanes = choose(choice, rows, length, target)
        cut = pieces(lanes, length)
        stored = out.dtype if quads else store_type(out.dtype, target)

        def launch(stage: Stage, read: list[Tensor], write: list[Tensor]) -> Dispatch:
            kernel = kernels.softmax(stage, x.dtype, stored, log, quads, cut.held, lanes, target)
            params: dict[str, int | float] = {"rows": rows, "length": length, "inner": inner, "blank": blank}
            return Dispatch(kernel, read, write, lanes.groups(rows) * cut.parts, params | cut.params(stage))

        if cut.parts == 1:
            yield launch("whole", [x], [out])
            return
        numbers = (cut.parts, x.numel // x.shape[k])
        tops = yield Scratch(numbers, DType.F32)
        totals = yield Scratch(numbers, DType.F32)
        yield launch("statistics", [x], [tops, totals])
        yield launch("results", [x, tops, totals], [out])

    return flagged, typed


for _name, _log in {"softmax": False, "log_softmax": True}.items():
    _flagged, _typed = softmax(_log)
    define([f"aten._{_name}.default"], _flagged, "steps", fits="x float")
    define([f"aten.{_name}.int"], _typed, "steps", fits="x any -> float")  # ints with a float dtype
define(["aten._safe_softmax.default"], softmax(blank=0.0)[1], "steps", fits="x float")
