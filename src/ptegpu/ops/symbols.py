"""Symbolic ints: where they come from and their arithmetic, all done by the host before a run."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..errors import ExecutionError
from ..graph.graph import Tensor
from .pointwise import contiguous
from .registry import Number, define, normalise_dim, sym


@sym("sym_size.int", "aten.sym_size.int", whole=True)
def sym_size(x: Tensor, dim: int) -> int:
    return x.shape[normalise_dim(dim, x.rank)]


@sym("aten.sym_numel.default", "aten.sym_numel", whole=True)
def sym_numel(x: Tensor) -> int:
    return x.numel


@sym("et_vk.select_as_symint.default", whole=True)
def select_as_symint(x: Tensor, dim: int, index: int, *, data: Callable[[Tensor], Any] | None) -> int:
    """Element `index` along `dim` (first in the others) of an input; without data, which flat element that is."""
    k = normalise_dim(dim, x.rank)
    size = x.shape[k]
    if not -size <= index < size:
        raise ExecutionError(f"index {index} is out of range for dimension {dim} of {x!r}")
    element = (index % size) * contiguous(x.shape)[k]
    return element if data is None else int(data(x).reshape(-1)[element])


@sym("aten._local_scalar_dense.default")
def local_scalar_dense(x: Tensor, *, data: Callable[[Tensor], Any] | None) -> int:
    """The only element of an int tensor."""
    if x.numel != 1:
        raise ExecutionError(f"{x!r} has {x.numel} elements, one is needed")
    return 0 if data is None else int(data(x).reshape(-1)[0])


def _binary(name: str, function: Callable[[Any, Any], int]) -> None:
    def rule(a: Number, b: Number) -> int:
        return int(function(a, b))

    define([name, f"executorch_prim.{name}.Scalar"], rule, "sym", wide=True, verb=name.removeprefix("sym_"))


for _name in ("add", "sub", "mul", "mod", "lt", "le", "gt", "ge", "eq", "ne"):
    _binary(_name, getattr(operator, _name))
_binary("floordiv", operator.floordiv)
_binary("sym_min", min)
_binary("sym_max", max)


@sym("neg", "executorch_prim.neg.Scalar", verb="neg")
def neg(a: Number) -> Number:
    return -a


@sym("executorch_prim.sym_not.Scalar", verb="not")
def sym_not(a: Number) -> int:
    return int(not a)
