"""Lower bounds for a graph: the largest sizes that a caller names, instead of the largest that the program allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ..errors import PtegpuError
from ..graph.graph import Graph, Shape, Sym, Tensor, Value
from ..graph.live import evaluate

Named: TypeAlias = Mapping[str, Sequence[int]]  # values of sizes and ints, by name


class _Unknown(Exception):
    """An int that nobody has named, or data."""


def lower_bounds(graph: Graph, dynamic: Sequence[bool], named: Named) -> None:
    """Lower the maximum shapes of inputs to the largest sizes named, and those of results to what follows.

    The shape rules run at the largest and at the smallest sizes named. What depends on data, or on an int that is not
    named, keeps its maximum. A call that needs more than these is refused by the same rules.
    """
    shapes = [_shapes(graph, dynamic, named, pick) for pick in (max, min)]
    for tensor in shapes[0].keys() & shapes[1].keys():
        tensor.max_shape = tuple(map(max, shapes[0][tensor], shapes[1][tensor]))
    for tensor in graph.tensors():
        tensor.shape = tensor.max_shape


def _shapes(
    graph: Graph, dynamic: Sequence[bool], named: Named, pick: Callable[[Sequence[int]], int]
) -> dict[Tensor, Shape]:
    """Return the shapes of dynamic inputs, and of results, as far as they follow from what is named."""
    shapes: dict[Tensor, Shape] = {}
    unknown: set[Value] = set()
    for v, varies in zip(graph.inputs, dynamic, strict=True):
        if isinstance(v, Sym):
            if v.name in named:
                v.value = pick(named[v.name])
            else:
                unknown.add(v)
        elif varies:
            sizes = [named.get(f"{v.name}[{d}]") or (n,) for d, n in enumerate(v.max_shape)]
            v.shape = shapes[v] = tuple(min(n, pick(s)) for n, s in zip(v.max_shape, sizes, strict=True))
    for node in graph.nodes:
        try:
            results = [] if unknown & set(node.values()) else evaluate(node, _no_data)
        except (_Unknown, PtegpuError):
            results = []
        if not results:
            unknown.update(node.outs)
        for out, result in zip(node.outs, results):
            if isinstance(out, Sym):
                out.value = result  # type: ignore[assignment]
            else:
                out.shape = shapes[out] = result  # type: ignore[assignment]
    return shapes


def _no_data(tensor: Tensor, element: int) -> int:
    raise _Unknown
