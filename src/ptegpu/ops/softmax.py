"""Softmax along any dimension, in f32."""

from __future__ import annotations

import math

from ..dtypes import FLOATS
from ..graph.graph import Tensor
from ..kernels import softmax as kernels
from ..kernels.lanes import ACROSS_ROWS, ALONG_ROWS, choose, held
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .registry import Dispatch, Out, Steps, define, normalise_dim


def softmax(name: str, *also: str, log: bool = False, blank: float = math.nan) -> None:
    """An operator (x, dim, …) whose third argument only says the dtype; `blank` is 1/0 for rows of nothing but -inf."""

    def rule(x: Tensor, dim: int, dtype: int | None = None, *, target: Target) -> Steps:
        k = normalise_dim(dim, x.rank)
        out = yield Out(x.shape)
        length = x.shape[k] if x.rank else 1
        inner = math.prod(x.shape[k + 1 :])
        rows = x.numel // length if length else 0
        quads = inner == 1 and length % 4 == 0
        loads = length // 4 if quads else length
        lanes = choose(ALONG_ROWS if inner == 1 else ACROSS_ROWS, rows, loads, target)
        stored = out.dtype if quads else store_type(out.dtype, target)
        kernel = kernels.softmax(x.dtype, stored, log, quads, held(lanes, loads), lanes, target)
        params = {"rows": rows, "length": loads, "inner": inner, "blank": blank}
        yield Dispatch(kernel, [x], [out], lanes.groups(rows), params)

    define([name], rule, "steps", dtypes=FLOATS)
    define(also, rule, "steps")  # these take ints where a float dtype is asked for


softmax("aten._softmax.default", "aten.softmax.int")
softmax("aten._log_softmax.default", "aten.log_softmax.int", log=True)
softmax("aten._safe_softmax.default", blank=0.0)
