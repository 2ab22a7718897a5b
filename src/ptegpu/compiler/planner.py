"""From a graph to a plan that holds for every size: rules run on sizes that remember, until all sizes are covered.

First the shape rules run, at the largest sizes; the guards that they leave say for which sizes the shapes follow the
same expressions: a *family*. Then every node is lowered by itself; its guards say where that *choice* of dispatches
serves. Sizes that no family or no choice covers are traced next, until none is left among those that are looked at:
all, where there are not too many, else a sample. A size that was missed is traced when asked for (`Planner.extend`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram, PtegpuError
from ..graph.graph import Graph, Sym, Tensor, Value
from ..graph.live import evaluate
from ..limits import tick
from ..passes.caches import halve_caches
from ..passes.memory import ConstantKey, Memory
from ..passes.split import split_constants
from ..plan.numbers import SCALAR, Item, Many, needed
from ..plan.plan import (
    Bound,
    Choice,
    Copy,
    Expr,
    Family,
    Input,
    Number,
    Plan,
    Port,
)
from ..plan.target import Target
from ..sizes import BIG, Range, Size, Table, Trace, plain_value, result_range
from . import sample
from .classes import Classes
from .indices import Indices
from .node import Lowering, Tables, number
from .room import Room

MAX_INTS = 1024  # values of an int that is no size
MAX_FAMILIES = 64  # and choices of a node: what is beyond is traced when it is asked for
MAX_AHEAD = 512  # of each where nothing can be traced later
INT_RANGE = (-(2**31), 2**31 - 1)

Sizes: TypeAlias = Mapping[str, Iterable[int]]  # values to look at, by name, each with each
Points: TypeAlias = Sequence[Mapping[str, int]]  # or one by one, what is not named being as large as it can


class Point:
    """Values of rows at one set of sizes; `base` are those of the rows that are sizes and ints, `item` reads data.

    Data that nobody has seen is 0.
    """

    def __init__(self, table: Table, base: Mapping[int, int], item: Item = lambda _, __: 0) -> None:
        self.table, self._found, self._item = table, dict(base), item

    def __getitem__(self, row: int) -> int:
        if row not in self._found:
            for k in needed(self.table.rows, [row]):
                if k not in self._found:
                    op, a, b = self.table.rows[k]
                    if op == "item":
                        self._found[k] = self._item(int(b), self._found[int(a)])
                    elif op == "const":
                        self._found[k] = a  # type: ignore[assignment]
                    else:
                        self._found[k] = SCALAR[op](self._found[int(a)], self._found[int(b)])
        return self._found[row]


@dataclass(slots=True)
class _Family:
    guards: tuple[int, ...]
    values: dict[Value, tuple[Number, ...]]  # shapes; of a symbolic int, its number
    refusal: PtegpuError | None = None
    choices: list[list[_Choice]] = field(default_factory=list)  # of each step
    bounds: tuple[Bound, ...] = ()


@dataclass(slots=True)
class _Choice:
    guards: tuple[int, ...]
    lowering: Lowering
    refusal: PtegpuError | None = None


class Planner:
    """The plan of one graph, as far as it was traced.

    `dynamic` says of each input whether its sizes may change (by default none do). `sizes` are the values to look at,
    by name: of a dimension "input 0[1]", of an int its own name. `names` are those of constants across graphs.
    With `ahead`, nothing can be traced later: ints and data that decide anything are looked at as sizes are.
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
    ) -> None:
        self.plain = plain  # sizes are plain ints, and what is planned holds for these alone: what tests compare with
        split_constants(graph, target)
        self.halved = halve_caches(graph) if target.cache == "f16" else 0  # caches
        if target.precision == "auto" and not _rounded(graph):
            target = replace(target, precision="exact")
        self.graph, self.target, self.ahead = graph, target, ahead
        self.most = MAX_AHEAD if ahead else MAX_FAMILIES
        self.dynamic = tuple(dynamic) if dynamic is not None else (False,) * len(graph.inputs)
        self.points, self.sizes = points, {name: sorted(set(v)) for name, v in (sizes or {}).items()}
        self.room = Room(graph, self.dynamic, target, names)
        self._begin(self.room.first(self.sizes or _named(points), grow=not ahead))

    def _begin(self, memory: Memory) -> None:
        """Forget what was traced, if anything was; from now on, buffers are those of `memory`."""
        graph, target = self.graph, self.target
        self.memory = memory
        self.table = Table()
        self.tables = Tables(graph, self.memory, target, self._room)
        self.indices = Indices(graph, self.memory)
        self.base: dict[int, str] = {}  # rows that are sizes and ints → their names
        for k, v in enumerate(graph.inputs):
            if isinstance(v, Sym):
                self.base[self.table.add("int", k, 0, INT_RANGE)] = v.name
            elif self.dynamic[k]:
                for d, n in enumerate(v.max_shape):
                    self.base[self.table.add("size", k, d, (0, n))] = f"{v.name}[{d}]"
        for v in (*graph.inputs, *(o for n in graph.nodes for o in n.outs)):
            if isinstance(v, Sym):
                self.tables.word(v)
        self.steps = [(k, n) for k, n in enumerate(graph.nodes) if n.op.sym is None]
        self.families: list[_Family] = []
        self.deciding: set[int] = set()  # rows that are ints and data, on which guards depend
        self.grid: dict[int, np.ndarray] = {}
        self.many: Many | None = None
        self.complete = False
        self.anchors: set[int] = set()  # guards that say how the sizes that are looked at hang together
        self.traces = 0  # of nodes
        self._few: dict[tuple[int, ...], tuple[int, ...]] = {}

    # The sizes that are looked at

    def cover(self) -> Planner:
        """Trace until every size that is looked at is covered."""
        largest = {
            row: int(self.table.ranges[row][1]) if self._is_size(row) else self._ints(row)[0] for row in self.base
        }
        first = self._trace_shapes(Point(self.table, largest))
        if first.refusal is not None and not first.guards:  # whatever the sizes and the data
            raise first.refusal
        if not self.base:
            self._check_declared(first)
        self._cover(first)
        while self.ahead and not self.points and (more := self._decided_by() - self.deciding):
            self.deciding |= more
            self._cover(first)
        if first.refusal is not None and self.complete and len(self.families) < self.most:
            if all(f.refusal and all(map(self._known, f.guards)) for f in self.families):  # at every size
                raise first.refusal
        self.many = Many(self.table.rows, self.grid)  # without the arrays that were needed on the way
        if not self.base and not first.guards:
            refused = next((c.refusal for cs in first.choices for c in cs if c.refusal and not c.guards), None)
            if refused is not None:
                raise refused
        return self

    def _cover(self, first: _Family) -> None:
        self._make_grid(first)
        self._cover_shapes()
        for family in self.families:
            self._cover_steps(family)

    def _decided_by(self) -> set[int]:
        """Return the rows that are ints or data and that guards depend on."""
        guards = {g for f in self.families for g in f.guards}
        guards |= {g for f in self.families for choices in f.choices for c in choices for g in c.guards}
        return {row for row in needed(self.table.rows, guards) if self.table.rows[row][0] in ("int", "item")}

    def extend(self, given: Sequence[tuple[int, ...] | int], item: Item) -> None:
        """Trace for inputs of these shapes (ints: these values), and with these elements; what cannot run raises.

        If their buffers are too small for that, they grow, and all is traced anew.
        """
        if not self.room.holds(given):
            self._begin(self.room.grow(given))
            self.cover()
        point = Point(self.table, {row: self._given(row, given) for row in self.base}, item)
        self.tables.renew()
        family = next((f for f in self.families if f.refusal is None and self._holds(f.guards, point)), None)
        if family is None:
            family = self._trace_shapes(point)
            if family.refusal is not None:  # in the words of these sizes
                self.families.remove(family)
                raise family.refusal
        for k in range(len(self.steps)):
            known = (c for c in family.choices[k] if c.refusal is None and self._holds(c.guards, point))
            if next(known, None) is None:
                choice = self._trace_step(family, k, point)
                if choice.refusal is not None:
                    family.choices[k].remove(choice)
                    raise choice.refusal

    def _given(self, row: int, given: Sequence[tuple[int, ...] | int]) -> int:
        op, a, b = self.table.rows[row]
        value = given[int(a)]
        return value[int(b)] if op == "size" else value  # type: ignore[index, return-value]

    def _is_size(self, row: int) -> bool:
        return self.table.rows[row][0] == "size"

    def _ints(self, row: int) -> list[int]:
        return self.sizes.get(self.base[row], [0])

    def _holds(self, guards: Iterable[int], point: Point) -> bool:
        return all(bool(point[g]) for g in guards)

    def _make_grid(self, first: _Family) -> None:
        """Arrays of sizes: those that must be equal vary together, those that must have a value have it.

        Sizes that seem to belong together, as products of them are equal, come once more together, and first.
        """
        sources = {*self.base, *self.deciding}
        classes = Classes(sources)
        for g in first.guards:
            op, a, b = self.table.rows[g]
            if op == "eq" and a in sources and b in sources:
                classes.join(int(a), int(b))
                self.anchors.add(g)
            elif op == "eq" and "const" in (self.table.rows[int(a)][0], self.table.rows[int(b)][0]):
                fixed = {int(x) for x in (a, b) if x in self.base}
                classes.pinned |= fixed
                self.anchors |= {g} if fixed else set()
        self.grid, self.complete = self._listed() if self.points else self._product(classes)
        if not self.points and classes.join_products(self.table, first.guards):
            more, _ = self._product(classes)
            self.grid = {row: np.concatenate([values, more[row]]) for row, values in self.grid.items()}
        self.many = Many(self.table.rows, self.grid)

    def _listed(self) -> tuple[dict[int, np.ndarray], bool]:
        """The sizes that were given one by one."""
        columns = {
            row: [p.get(name, int(self.table.ranges[row][1]) if self._is_size(row) else 0) for p in self.points]
            for row, name in self.base.items()
        }
        return {row: np.array(column, np.int64) for row, column in columns.items()}, False

    def _product(self, classes: Classes) -> tuple[dict[int, np.ndarray], bool]:
        """Each with each, and whether these are all that there are."""
        axes: list[Sequence[int]] = []
        complete = True
        members, pinned = classes.members(), classes.fixed()
        for key, rows in members.items():
            given = [v for row in rows for v in self.sizes.get(self.base.get(row, ""), ())]
            high = min((int(self.table.ranges[row][1]) for row in rows if self._is_size(row)), default=None)
            if high is None:
                axes.append(given or (self._values_of_ints() if self.deciding & set(rows) else [0]))
                complete = False
            elif given:
                axes.append(sorted({v for v in given if 0 <= v <= high}))
                complete = False
            else:
                axes.append([high] if key in pinned else range(high + 1))
        total = math.prod(map(len, axes))
        complete = complete and total <= sample.MAX_POINTS
        points = sample.every(axes, total) if total <= sample.MAX_POINTS else sample.sample(axes)
        return {row: points[:, k] for k, rows in enumerate(members.values()) for row in rows}, complete

    def _values_of_ints(self) -> list[int]:
        """Return what an int may be that sizes are made of, or a sample: up to the largest dimension, and below 0."""
        most = max((n for t in self.graph.tensors() for n in t.max_shape), default=0)
        values = sample.pick(range(most + 1), MAX_INTS)
        return sorted({v for n in values for v in (-n, n)}, key=lambda v: (abs(v), v))

    def _mask(self, guards: Iterable[int]) -> np.ndarray:
        """The points where all guards hold; data that nobody has seen count as zeros, as where they were traced."""
        assert self.many is not None
        count = len(next(iter(self.grid.values()))) if self.grid else 1
        mask = np.ones(count, bool)
        for g in guards:
            many = self.many
            if not self._known(g):
                unseen = (row for row in needed(self.table.rows, [g]) if self.table.rows[row][0] == "item")
                many = Many(self.table.rows, {**self.grid, **dict.fromkeys(unseen, np.zeros(count, np.int64))})
            mask &= np.asarray(many[g], bool)
        return mask

    def _point(self, k: int) -> Point:
        return Point(self.table, {row: int(values[k]) for row, values in self.grid.items()})

    def _cover_shapes(self) -> None:
        left = ~np.logical_or.reduce([self._mask(f.guards) for f in self.families])
        while left.any() and len(self.families) < self.most:
            family = self._trace_shapes(self._point(int(np.flatnonzero(left)[-1])))
            mask = self._mask(family.guards)
            left &= ~mask

    def _cover_steps(self, family: _Family) -> None:
        if family.refusal is not None:
            return
        inside = self._mask(family.guards)
        if not inside.any():
            return
        for k in range(len(self.steps)):
            left = inside & ~np.logical_or.reduce([self._mask(c.guards) for c in family.choices[k]], initial=False)
            while left.any() and len(family.choices[k]) < self.most:
                choice = self._trace_step(family, k, self._point(int(np.flatnonzero(left)[-1])))
                left &= ~self._mask(choice.guards)
                if self.complete and self.anchors <= set(family.guards):
                    choice.guards = self._needed(choice.guards, inside)
        self._few.clear()

    def _needed(self, guards: tuple[int, ...], inside: np.ndarray) -> tuple[int, ...]:
        """Those that tell sizes of a family apart; all of its sizes are looked at."""
        if guards not in self._few:
            kept = list(guards)
            for g in guards:
                others = [x for x in kept if x != g]
                if np.array_equal(self._mask(kept) & inside, self._mask(others) & inside) and self._known(g):
                    kept = others
            self._few[guards] = tuple(kept)
        return self._few[guards]

    def _known(self, row: int) -> bool:
        """Whether it depends on sizes only, not on data that nobody has seen."""
        try:
            self.many[row]  # type: ignore[index]
        except KeyError:
            return False
        return True

    # Traces

    def _trace_shapes(self, point: Point) -> _Family:
        tick()
        trace = Trace(self.table)
        graph = self.graph
        for k, v in enumerate(graph.inputs):
            if isinstance(v, Sym):
                row = self.table.add("int", k, 0)
                v.value = self._traced(trace, row, point)
            elif self.dynamic[k]:
                rows = [self.table.add("size", k, d) for d in range(len(v.max_shape))]
                v.shape = tuple(self._traced(trace, row, point) for row in rows)
            else:
                v.shape = v.max_shape
        places = {v: k for k, v in enumerate(graph.inputs)}

        def item(tensor: Tensor, element: int) -> int:
            row = self.table.add("item", trace.row(element), places[tensor], INT_RANGE)
            return self._traced(trace, row, point)

        refusal: PtegpuError | None = None
        try:
            for node in graph.nodes:
                for out, new in zip(node.outs, evaluate(node, item), strict=True):
                    if isinstance(out, Tensor):
                        out.shape = new  # type: ignore[assignment]
                    else:
                        out.value = new  # type: ignore[assignment]
        except PtegpuError as e:
            refusal = e
        guards = _guards(trace, refusal)
        family = _Family(guards, {}, refusal, [[] for _ in self.steps])
        if refusal is None:
            for v in self._values():
                numbers = tuple(map(number, v.shape)) if isinstance(v, Tensor) else (number(v.value),)
                family.values[v] = numbers
            more = Trace(self.table)
            self._set(family, more, point)
            family.bounds = self.indices.bounds(self.tables.buffers)
            family.guards = tuple(dict.fromkeys((*guards, *more.guards)))
        self.families.append(family)
        return family

    def _traced(self, trace: Trace, row: int, point: Point) -> int:
        return point[row] if self.plain else Size(trace, row, point[row])  # type: ignore[return-value]

    def _values(self) -> Iterable[Value]:
        syms = [v for v in (*self.graph.inputs, *(o for n in self.graph.nodes for o in n.outs)) if isinstance(v, Sym)]
        return [*self.graph.tensors(), *syms]

    def _set(self, family: _Family, trace: Trace, point: Point, values: Iterable[Value] | None = None) -> None:
        """The shapes of the family at a point, in a trace of their own."""

        def traced(n: Number, most: float) -> int:
            if not isinstance(n, Expr):
                return n
            low, high = trace.range(n.row)
            trace.ranges[n.row] = max(low, -most), min(high, most)
            return trace.at(n.row, point[n.row])  # type: ignore[return-value]

        for v in family.values if values is None else values:
            numbers = family.values.get(v)
            if numbers is None:
                continue
            if isinstance(v, Tensor):
                v.shape = tuple(map(traced, numbers, v.max_shape))
            else:
                v.value = traced(numbers[0], 2**31)

    def _trace_step(self, family: _Family, k: int, point: Point) -> _Choice:
        tick()
        place, node = self.steps[k]
        trace = Trace(self.table)
        self._set(family, trace, point, (*node.values(), *node.outs))
        lowering = Lowering(self.tables, place, node, trace)
        refusal: PtegpuError | None = None
        try:
            lowering.run()
        except PtegpuError as e:
            refusal = e
        self.traces += 1
        choice = _Choice(_guards(trace, refusal), lowering, refusal)
        family.choices[k].append(choice)
        return choice

    def _room(self, size: Size, trace: Trace) -> int:
        """The most that a size can be where the trace's guards hold."""
        here = int(plain_value(size))
        if self.grid and self._known(size.row):
            mask = self._mask(trace.guards)
            return int(np.max(np.broadcast_to(self.many[size.row], mask.shape)[mask], initial=here))  # type: ignore[index]
        high = self._range(size.row, trace)[1]
        return here if high == BIG else int(high)

    def _range(self, row: int, trace: Trace) -> Range:
        """Return where a row lies, by what the trace knows of those that it is made of."""
        ranges: dict[int, Range] = {}
        for k in needed(self.table.rows, [row]):
            op, a, b = self.table.rows[k]
            known = trace.ranges.get(k)
            if known is None:
                known = result_range(op, ranges[int(a)], ranges[int(b)]) if op in SCALAR else self.table.ranges[k]
            ranges[k] = known
        return ranges[row]

    def _check_declared(self, family: _Family) -> None:
        """Raise InvalidProgram for a shape that is not the declared one. A size that comes from data is at most that:
        the family's guards say so."""
        for node in self.graph.nodes:
            for out in node.outs:
                gives = family.values.get(out, ())
                if isinstance(out, Tensor) and any(
                    n != m and not isinstance(n, Expr) for n, m in zip(gives, out.max_shape)
                ):
                    told = [f"up to {m}" if isinstance(n, Expr) else str(n) for n, m in zip(gives, out.max_shape)]
                    says = list(out.max_shape)
                    gives_and_says = f"{node.name} gives [{', '.join(told)}], the program says {says}"
                    raise InvalidProgram(f"{gives_and_says}: it contradicts itself, so export it again")

    # The record

    def plan(self) -> Plan:
        """What was traced so far, as data."""
        graph, memory = self.graph, self.memory
        index = self.tables.index
        inputs = []
        for k, v in enumerate(graph.inputs):
            if isinstance(v, Tensor):
                buffer = index(memory.buffer_of[v])
                only = v in self.indices.only
                inputs.append(Input(v.name, buffer, v.dtype, v.max_shape, self.dynamic[k], only))
            else:
                inputs.append(Input(v.name))
        copies = [
            Copy(index(memory.buffer_of[value]), index(memory.buffer_of[state]), -(-state.max_nbytes // 4) * 4)
            for state, value in graph.writebacks
            if memory.buffer_of[value] is not memory.buffer_of[state]
        ]
        families = tuple(self._family(f) for f in self.families)
        buffers = tuple(self.tables.finished())
        images = tuple(bytes(i) + bytes(-len(i) % 16) for i in self.tables.images if i)
        rows = tuple(self.table.rows)
        kernels = tuple(self.tables.kernels)
        return Plan(graph.name, buffers, kernels, tuple(inputs), families, tuple(copies), rows, images, memory.blobs)

    def _family(self, family: _Family) -> Family:
        if family.refusal is not None:
            return Family(family.guards, (), (), refusal=str(family.refusal))
        steps = tuple(
            tuple(Choice(c.guards, tuple(c.lowering.dispatches), str(c.refusal or "")) for c in choices)
            for choices in family.choices
        )
        outputs: list[Port | Number] = []
        for v in self.graph.outputs:
            if isinstance(v, Tensor):
                buffer = self.tables.index(self.memory.buffer_of[v])
                outputs.append(Port(v.name, buffer, v.dtype, family.values[v]))
            else:
                outputs.append(family.values[v][0] if isinstance(v, Sym) else int(v))  # type: ignore[arg-type]
        words = tuple(family.values[key][0] if isinstance(key, Sym) else key for key in self.tables.words)
        return Family(family.guards, steps, tuple(outputs), words, family.bounds)


def _guards(trace: Trace, refusal: PtegpuError | None) -> tuple[int, ...]:
    """Where it holds. The texts at the end of a refusal name sizes, which would be the same for others like them."""
    guards = list(trace.guards.items())
    while refusal is not None and guards and guards[-1][1] == "text":
        guards.pop()
    return tuple(row for row, _ in guards)


def _named(points: Points) -> dict[str, list[int]]:
    """Return the values of each size that all points name."""
    names = set.intersection(*map(set, points)) if points else set()
    return {name: sorted({point[name] for point in points}) for name in sorted(names)}


def _rounded(graph: Graph) -> bool:
    """Whether weights are quantised, or something is f16."""
    few = (DType.U8, DType.I8)
    return any(t.dtype is DType.F16 or (t.kind == "constant" and t.dtype in few) for t in graph.tensors())


def planned(graph: Graph, target: Target, dynamic: Sequence[bool] | None = None) -> Plan:
    """The plan of a graph, for all sizes that its inputs may have."""
    return Planner(graph, target, dynamic).cover().plan()
