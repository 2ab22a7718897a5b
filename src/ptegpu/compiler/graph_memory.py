"""The memory of a graph: for the largest sizes that the program allows, or for smaller ones if those do not fit.

Exporters write a large number for a dimension without an upper bound: 16,384 in Vulkan's lowering. Buffers are then
allocated for the sizes that the caller names. Without names they start small, and grow with the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ..errors import LimitExceeded, PtegpuError
from ..graph.graph import Graph, Shape, Sym, Tensor, Value
from ..graph.shape_rules import evaluate
from ..passes.memory import ConstantKey, Memory, plan_memory
from ..plan.target import Target

SMALL = 1 << 24  # bytes of inputs and temporaries in a plan that may grow later

NamedSizes: TypeAlias = Mapping[str, Sequence[int]]  # values of sizes and ints, by name
InputSizes: TypeAlias = Sequence[Shape | int]  # the shape of each input, or its value if it is an int


class GraphMemory:
    """The memory of a graph, and its largest sizes. `dynamic` has for each input whether its sizes change."""

    def __init__(
        self, graph: Graph, dynamic: Sequence[bool], target: Target, names: dict[ConstantKey, str] | None
    ) -> None:
        self.graph, self.dynamic, self.target, self.names = graph, dynamic, target, names
        self._declared = {t: t.max_shape for t in graph.tensors()}
        self._memory: Memory | None = None  # new memory keeps its constants and states

    def first(self, named: NamedSizes, grow: bool, tight: bool = False) -> Memory:
        """Return memory for all sizes, or for the named ones, or, if it may `grow`, for small ones.

        With `tight`, it is for the named ones even if all sizes fit.
        """
        if tight and named:
            self._memory = self._lowered(named)
            return self._memory
        try:
            self._memory = self._planned()
            return self._memory
        except LimitExceeded as e:
            refusal = e
        if named:
            self._memory = self._lowered(named)
        elif grow:
            self._memory = self._small(refusal)
        else:
            raise refusal
        return self._memory

    def holds(self, sizes: InputSizes) -> bool:
        """Return whether inputs of these sizes fit their buffers."""
        return all(
            isinstance(v, Sym) or all(map(int.__le__, shape, v.max_shape))  # type: ignore[arg-type]
            for v, shape in zip(self.graph.inputs, sizes, strict=True)
        )

    def grow(self, sizes: InputSizes) -> Memory:
        """Return memory for inputs of these sizes as well; raise LimitExceeded if they do not fit at all.

        Sizes grow to powers of two, so that a text that gets longer word by word rarely needs new buffers.
        """
        before = {t: t.max_shape for t in self.graph.tensors()}
        rounded = [s if isinstance(s, int) else tuple(1 << max(n - 1, 0).bit_length() for n in s) for s in sizes]
        both = [
            s if isinstance(s, int) else tuple(map(max, s, before[v]))  # type: ignore[index]
            for v, s in zip(self.graph.inputs, rounded, strict=True)
        ]
        for candidate in (both, rounded, sizes):
            try:
                self._memory = self._lowered(self._named(candidate))
                return self._memory
            except LimitExceeded as e:
                refusal = e
        for tensor, shape in before.items():
            tensor.max_shape = tensor.shape = shape
        raise refusal

    def _planned(self) -> Memory:
        return plan_memory(self.graph, self.target, self.names, self._memory)

    def _lowered(self, named: NamedSizes) -> Memory:
        for tensor, shape in self._declared.items():
            tensor.max_shape = shape
        lower_bounds(self.graph, self.dynamic, named)
        return self._planned()

    def _axes(self) -> Iterator[tuple[Tensor, int, str]]:
        """Yield the dynamic dimensions with their names."""
        for v, varies in zip(self.graph.inputs, self.dynamic, strict=True):
            if varies and isinstance(v, Tensor):
                yield from ((v, d, f"{v.name}[{d}]") for d in range(len(v.max_shape)))

    def _named(self, sizes: InputSizes) -> dict[str, tuple[int]]:
        shapes = dict(zip(self.graph.inputs, sizes, strict=True))
        return {name: (shapes[v][d],) for v, d, name in self._axes()}  # type: ignore[index]

    def _small(self, refusal: LimitExceeded) -> Memory:
        """Halve the largest sizes until their memory is small.

        Equal sizes are halved in one step, since they may have to stay equal, or else separately. A size that the shape
        rules refuse to halve stays.
        """
        sizes = {name: v.max_shape[d] for v, d, name in self._axes()}
        fixed: set[str] = set()
        smallest: Memory | None = None
        while free := [name for name in sizes if name not in fixed and sizes[name] > 1]:
            size = max(sizes[name] for name in free)
            largest = [name for name in free if sizes[name] == size]
            half = size // 2 if size <= 1 << 14 else 1 << 14
            halved = dict.fromkeys(largest, half)
            if not self._works(sizes | halved):
                halved = {name: half for name in largest if self._works(sizes | {name: half})}
                fixed.update(set(largest) - halved.keys())
                if not halved or not self._works(sizes | halved):
                    fixed.update(largest)
                    continue
            sizes |= halved
            try:
                memory = self._lowered({name: (n,) for name, n in sizes.items()})
            except LimitExceeded as e:
                refusal = e
                continue
            smallest = memory
            if sum(b.nbytes for b in memory.buffers if b.role in ("input", "temp")) <= SMALL:
                return memory
        if smallest is None:
            raise refusal
        return smallest

    def _works(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the shape rules that do not depend on data accept these sizes."""
        for tensor, shape in self._declared.items():
            tensor.max_shape = shape
        try:
            _shapes(self.graph, self.dynamic, {name: (n,) for name, n in sizes.items()}, max, strict=True)
        except PtegpuError:
            return False
        return True


class _Unknown(Exception):
    """An int without a named value, or data."""


def lower_bounds(graph: Graph, dynamic: Sequence[bool], named: NamedSizes) -> None:
    """Lower the maximum shapes of inputs to the largest named sizes, and those of results accordingly.

    The shape rules run at the largest and at the smallest named sizes. A result that depends on data or on an unnamed
    int keeps its maximum. The same rules refuse a call that needs more.
    """
    shapes = [_shapes(graph, dynamic, named, pick) for pick in (max, min)]
    for tensor in shapes[0].keys() & shapes[1].keys():
        tensor.max_shape = tuple(map(max, shapes[0][tensor], shapes[1][tensor]))
    for tensor in graph.tensors():
        tensor.shape = tensor.max_shape


def _shapes(
    graph: Graph,
    dynamic: Sequence[bool],
    named: NamedSizes,
    pick: Callable[[Sequence[int]], int],
    *,
    strict: bool = False,
) -> dict[Tensor, Shape]:
    """Return the shapes of dynamic inputs, and of results that follow from the named sizes.

    The elements of an input that is named have that value. Sizes that a shape rule refuses raise if `strict`; otherwise
    the results are unknown.
    """

    def element(tensor: Tensor, element: int) -> int:
        if tensor.name not in named:
            raise _Unknown
        return pick(named[tensor.name])

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
            results = [] if unknown & set(node.values()) else evaluate(node, element)
        except _Unknown:
            results = []
        except PtegpuError:
            if strict:
                raise
            results = []
        if not results:
            unknown.update(node.outs)
        for out, result in zip(node.outs, results):
            if isinstance(out, Sym):
                out.value = result  # type: ignore[assignment]
            else:
                out.shape = shapes[out] = result  # type: ignore[assignment]
    return shapes
