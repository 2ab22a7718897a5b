"""The planner of a graph: it traces rules on symbolic sizes until the plan covers every size.

First the shape rules run at the largest sizes. Their guards define the sizes at which shapes follow the same
expressions: a *family*. Then every node is lowered separately; its guards define where that *choice* of dispatches is
valid. Points of the grid (`size_grid.py`) without a family or a choice are traced next, until none is left. A size
outside the grid is traced when a call needs it (`Planner.extend`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ..dtypes import DType
from ..graph.graph import Graph, Sym
from ..ops.tensor_core_products import has_matrix_units
from ..passes.caches import narrow_caches
from ..passes.chains import chain_products
from ..passes.memory import ConstantKey, Memory
from ..passes.split import split_constants
from ..plan.numbers import Item, with_operands
from ..plan.plan import Plan
from ..plan.target import CACHE_TYPES, Target
from ..sizes import ExpressionTable
from .graph_memory import GraphMemory, InputSizes
from .plan_writer import PlanWriter, TracedFamily
from .size_grid import Point, SizeGrid
from .tracer import INT_RANGE, Tracer

MAX_FAMILIES = 64  # and choices of a node: more are traced when calls need them
MAX_AHEAD = 512  # of each if nothing can be traced later

Sizes: TypeAlias = Mapping[str, Iterable[int]]  # values to plan for, by name: their Cartesian product
Points: TypeAlias = Sequence[Mapping[str, int]]  # or complete sets, where an omitted size has its largest value


class Planner:
    """The plan of one graph, as far as it is traced.

    `dynamic` has for each input whether its sizes may change (by default none may). `sizes` lists the values to plan
    for by name: "input 0[1]" for a dimension, its own name for an int. `names` has the names of constants across
    graphs. With `ahead`, nothing can be traced later: ints and data that guards depend on are covered like sizes.
    With `tight`, memory is for the sizes listed, even if there is room for all.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        dynamic: Sequence[bool] | None = None,
        names: dict[ConstantKey, str] | None = None,
        sizes: Sizes | None = None,
        points: Points = (),
        *,
        plain: bool = False,
        ahead: bool = False,
        tight: bool = False,
    ) -> None:
        split_constants(graph, target)
        narrow = CACHE_TYPES[target.cache]
        self.narrowed = narrow_caches(graph, narrow) if narrow is not DType.F32 else 0  # number of caches
        if target.precision == "auto" and not _rounded(graph):
            target = replace(target, precision="exact")
        if has_matrix_units(target) and target.precision != "exact":
            chain_products(graph)
        self.graph, self.target, self.ahead, self.plain = graph, target, ahead, plain
        self.limit = MAX_AHEAD if ahead else MAX_FAMILIES
        self.dynamic = tuple(dynamic) if dynamic is not None else (False,) * len(graph.inputs)
        self.points, self.sizes = points, {name: sorted(set(v)) for name, v in (sizes or {}).items()}
        self.graph_memory = GraphMemory(graph, self.dynamic, target, names)
        self._begin(self.graph_memory.first(self.sizes or _named(points), grow=not ahead, tight=tight))

    def _begin(self, memory: Memory) -> None:
        """Start a plan with the buffers of `memory`, and drop everything traced before."""
        self.memory, self.table = memory, ExpressionTable()
        largest_dim = max((n for t in self.graph.tensors() for n in t.max_shape), default=0)
        self.grid = SizeGrid(self.table, self._sources(), self.sizes, self.points, largest_dim)
        self.writer = PlanWriter(self.graph, memory, self.target)
        self.tracer = Tracer(self.graph, self.grid, self.writer, self.dynamic, plain=self.plain)
        self.families: list[TracedFamily] = []

    def _sources(self) -> dict[int, str]:
        """Add a row for each int and each dynamic size; return their names."""
        names: dict[int, str] = {}
        for k, v in enumerate(self.graph.inputs):
            if isinstance(v, Sym):
                names[self.table.add("int", k, 0, INT_RANGE)] = v.name
            elif self.dynamic[k]:
                for d, n in enumerate(v.max_shape):
                    names[self.table.add("size", k, d, (0, n))] = f"{v.name}[{d}]"
        return names

    def cover(self) -> Planner:
        """Trace until every point of the grid is covered."""
        first = self._trace_shapes(self.grid.largest())
        if first.refusal is not None and not first.guards:  # for all sizes and data
            raise first.refusal
        if not self.grid.names:
            self.tracer.check_declared(first)
        deciding: set[int] = set()
        self._cover(first, deciding)
        while self.ahead and not self.points and (more := self._deciding() - deciding):
            deciding |= more
            self._cover(first, deciding)
        if first.refusal is not None and self.grid.complete and len(self.families) < self.limit:
            if all(f.refusal and all(map(self.grid.knows, f.guards)) for f in self.families):  # at every size
                raise first.refusal
        self.grid.forget()
        if not self.grid.names and not first.guards:
            refused = next((c.refusal for cs in first.choices for c in cs if c.refusal and not c.guards), None)
            if refused is not None:
                raise refused
        return self

    def _cover(self, first: TracedFamily, deciding: Iterable[int]) -> None:
        self.grid.lay_out(first.guards, deciding)
        left = ~np.logical_or.reduce([self.grid.mask(f.guards) for f in self.families])
        while left.any() and len(self.families) < self.limit:
            left &= ~self.grid.mask(self._trace_shapes(self._last(left)).guards)
        for family in self.families:
            if family.refusal is None:
                self._cover_steps(family)

    def _cover_steps(self, family: TracedFamily) -> None:
        inside = self.grid.mask(family.guards)
        if not inside.any():
            return
        reduced: dict[tuple[int, ...], tuple[int, ...]] = {}
        for k, choices in enumerate(family.choices):
            left = inside & ~np.logical_or.reduce([self.grid.mask(c.guards) for c in choices], initial=False)
            while left.any() and len(choices) < self.limit:
                choice = self.tracer.step(family, k, self._last(left))
                choices.append(choice)
                left &= ~self.grid.mask(choice.guards)
                if self.grid.complete and self.grid.anchors <= set(family.guards):
                    if choice.guards not in reduced:
                        reduced[choice.guards] = self.grid.distinguishing(choice.guards, inside)
                    choice.guards = reduced[choice.guards]

    def _last(self, left: np.ndarray) -> Point:
        return self.grid.point(int(np.flatnonzero(left)[-1]))

    def _trace_shapes(self, point: Point) -> TracedFamily:
        family = self.tracer.shapes(point)
        self.families.append(family)
        return family

    def _deciding(self) -> set[int]:
        """Return the rows of ints and data that guards depend on."""
        guards = {g for f in self.families for g in f.guards}
        guards |= {g for f in self.families for choices in f.choices for c in choices for g in c.guards}
        return {row for row in with_operands(self.table.rows, guards) if self.table.rows[row][0] in ("int", "item")}

    def extend(self, sizes: InputSizes, item: Item) -> None:
        """Trace for inputs of these sizes and elements; raise the reason if they cannot run.

        If their buffers are too small, the buffers grow, and everything is traced again.
        """
        if not self.graph_memory.holds(sizes):
            self._begin(self.graph_memory.grow(sizes))
            self.cover()
        values: dict[int, int] = {}
        for row in self.grid.names:
            op, a, b = self.table.rows[row]
            size = sizes[int(a)]
            values[row] = size[int(b)] if op == "size" else size  # type: ignore[index, assignment]
        point = Point(self.table, values, item)
        self.writer.renew()
        family = next((f for f in self.families if f.refusal is None and point.satisfies(f.guards)), None)
        if family is None:
            family = self.tracer.shapes(point)
            if family.refusal is not None:  # its text has these sizes
                raise family.refusal
            self.families.append(family)
        for k, choices in enumerate(family.choices):
            if not any(c.refusal is None and point.satisfies(c.guards) for c in choices):
                choice = self.tracer.step(family, k, point)
                if choice.refusal is not None:
                    raise choice.refusal
                choices.append(choice)

    def plan(self) -> Plan:
        """Return everything traced so far, as data."""
        return self.writer.plan(self.families, self.table.rows, self.dynamic, self.tracer.indices.index_only)


def _named(points: Points) -> dict[str, list[int]]:
    """Return the values of each size that all points list."""
    names = set.intersection(*map(set, points)) if points else set()
    return {name: sorted({point[name] for point in points}) for name in sorted(names)}


def _rounded(graph: Graph) -> bool:
    """Return whether weights are quantised, or any tensor is f16 or Q8."""
    rounded, packed = (DType.F16, DType.Q8), (DType.U8, DType.I8)
    return any(t.dtype in rounded or (t.kind == "constant" and t.dtype in packed) for t in graph.tensors())


def planned(graph: Graph, target: Target, dynamic: Sequence[bool] | None = None) -> Plan:
    """Return the plan of a graph for all sizes that its inputs may have."""
    return Planner(graph, target, dynamic).cover().plan()
