"""Operators that only move elements: each reads its input through strides, so that one kernel serves them all."""

from __future__ import annotations

from ..graph.graph import Tensor
from ..plan.target import Target
from .pointwise import Strided, contiguous, pointwise
from .registry import Out, Steps, normalise_dim, op


@op("aten.permute_copy.default", "aten.permute.default", wide=True)
def permute(x: Tensor, dims: list[int], *, target: Target) -> Steps:
    order = [normalise_dim(d, x.rank) for d in dims]
    out = yield Out([x.shape[d] for d in order], x.dtype)
    own = contiguous(x.shape)
    yield pointwise("permute", "a", [Strided(x, tuple(own[d] for d in order))], out, target)
