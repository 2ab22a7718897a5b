"""Operators that change a tensor's shape, or nothing at all: they cost nothing if the dtype stays the same."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..graph.names import COPY, PREPACK, VIEW
from .registry import Options, normalise_dim, view

CLONE = "aten.clone.default"


@view(VIEW, "aten.view.default", "aten._unsafe_view.default", "executorch_prim.et_view.default")
def view_copy(x: Tensor, size: list[int]) -> Shape:
    """Return `size`, in which one entry may be -1: the remaining elements."""
    divisor = math.prod(n for n in size if n != -1)
    if size.count(-1) > 1 or any(n < -1 for n in size):
        raise ShapeError(f"{size} is not a shape")
    if -1 in size:
        if not divisor or x.numel % divisor:
            raise ShapeError(f"{list(x.shape)} cannot be viewed as {size}")
        size = [x.numel // divisor if n == -1 else n for n in size]
    if math.prod(size) != x.numel:
        raise ShapeError(f"{list(x.shape)} cannot be viewed as {size}")
    return tuple(size)


@view("aten.squeeze_copy.dims", "aten.squeeze.dims", "aten.squeeze_copy.dim", "aten.squeeze.dim")
def squeeze(x: Tensor, dim: list[int]) -> Shape:
    drop = {normalise_dim(d, x.rank) for d in dim}
    return tuple(n for k, n in enumerate(x.shape) if not (k in drop and n == 1))


@view("aten.squeeze_copy.default", "aten.squeeze.default")
def squeeze_all(x: Tensor) -> Shape:
    return tuple(n for n in x.shape if n != 1)


@view("aten.unsqueeze_copy.default", "aten.unsqueeze.default")
def unsqueeze(x: Tensor, dim: int) -> Shape:
    k = normalise_dim(dim, x.rank + 1)
    return (*x.shape[:k], 1, *x.shape[k:])


@view(COPY, "aten.lift_fresh_copy.default", "aten.detach_copy.default", PREPACK)
def alias(x: Tensor) -> Shape:
    """`PREPACK` uploads a constant. The importer turns most of them into the constant itself."""
    return x.shape


@view(CLONE, "aten.contiguous.default")
def clone(x: Tensor, memory_format: Any = None) -> Shape:
    return x.shape


@view("dim_order_ops._clone_dim_order.default")
def clone_order(x: Tensor, non_blocking: Any = False, order: Any = None) -> Shape:
    return x.shape


@view("aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default", casts=True)
def to_copy(x: Tensor, options: Options = None, non_blocking: Any = False, order: Any = None) -> Shape:
    return x.shape
