"""Symbolic ints: their sources and their arithmetic, which the host computes before a run."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Tensor
from ..graph.names import ADD
from ..sizes import Size, largest, smallest
from . import spans
from .pointwise import contiguous
from .registry import Number, define, normalise_dim, sym

SIZE = "sym_size.int"


def _dim(x: Tensor, dim: int) -> int:
    """Return a dimension counted from the front. Unlike most operators, these accept none of a 0-d tensor."""
    if not x.rank:
        raise ShapeError(f"dimension {dim} is out of range for rank 0")
    return normalise_dim(dim, x.rank)


@sym(SIZE, "aten.sym_size.int", whole=True, span=spans.size)
def sym_size(x: Tensor, dim: int) -> int:
    return x.shape[_dim(x, dim)]


@sym("aten.sym_numel.default", "aten.sym_numel", whole=True, span=spans.numel)
def sym_numel(x: Tensor) -> int:
    return x.numel


@sym("et_vk.select_as_symint.default", whole=True, reads=True)
def select_as_symint(x: Tensor, dim: int, index: int) -> int:
    """Return the flat position of element `index` along `dim` (first in the other dimensions) of an input."""
    k = _dim(x, dim)
    size = x.shape[k]
    if not -size <= index < size:
        raise ShapeError(f"index {index} is out of range for dimension {dim} of {x!r}")
    return (index % size) * contiguous(x.shape)[k]


@sym("aten._local_scalar_dense.default", reads=True)
def local_scalar_dense(x: Tensor) -> int:
    """Return the flat position of the only element of an int tensor."""
    if x.numel != 1:
        raise ShapeError(f"{x!r} has {x.numel} elements, expected 1")
    return 0


def _names(name: str) -> tuple[str, str]:
    """Return the names of the same arithmetic in a delegate and in a program."""
    return name, f"executorch_prim.{name}.Scalar"


def _binary(name: str, function: Callable[[Any, Any], int], **traits: Any) -> None:
    def rule(a: Number, b: Number) -> int:
        value = function(a, b)
        return value if isinstance(value, Size) else int(value)

    define(_names(name), rule, "sym", wide=True, **traits)


SUM = _names(ADD)
_binary(ADD, operator.add, span=spans.both(operator.add), neutral=0)
_binary("sub", operator.sub, span=spans.both(operator.sub))
_binary("mul", operator.mul, span=spans.both(operator.mul))
_binary("floordiv", operator.floordiv, span=spans.divided)
for _name in ("mod", "lt", "le", "gt", "ge", "eq", "ne"):
    _binary(_name, getattr(operator, _name))
_binary("sym_min", smallest)
_binary("sym_max", largest)


@sym("neg", "executorch_prim.neg.Scalar")
def neg(a: Number) -> Number:
    return -a


@sym("executorch_prim.sym_not.Scalar")
def sym_not(a: Number) -> int:
    return int(not a)
