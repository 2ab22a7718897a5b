"""Traces of shape rules and lowerings on symbolic sizes: each has a result, and guards for the sizes where it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import InvalidProgram, PtegpuError
from ..graph.graph import Graph, Sym, Tensor, Value
from ..graph.shape_rules import evaluate
from ..limits import tick
from ..plan.plan import Expr, Number
from ..sizes import Size, Trace
from .indices import Indices
from .lowering import Lowering
from .plan_writer import PlanWriter, TracedChoice, TracedFamily, number
from .size_grid import Point, SizeGrid

INT_RANGE = (-(2**31), 2**31 - 1)


class Tracer:
    """Traces the rules of one graph. With `plain`, sizes are plain ints, and a trace holds at its own point only."""

    def __init__(
        self, graph: Graph, grid: SizeGrid, writer: PlanWriter, dynamic: Sequence[bool], *, plain: bool = False
    ) -> None:
        self.graph, self.grid, self.table, self.writer = graph, grid, grid.table, writer
        self.dynamic, self.plain = dynamic, plain
        self.indices = Indices(graph, writer.memory)
        results = [o for n in graph.nodes for o in n.outs]
        self.syms = [v for v in (*graph.inputs, *results) if isinstance(v, Sym)]
        self.steps = [(k, n) for k, n in enumerate(graph.nodes) if n.op.sym is None]
        self.lowered = 0  # number of nodes
        for v in self.syms:
            writer.word(v)

    def shapes(self, point: Point) -> TracedFamily:
        """Run the shape rules at a point."""
        tick()
        trace = Trace(self.table)
        graph = self.graph
        for k, v in enumerate(graph.inputs):
            if isinstance(v, Sym):
                v.value = self._source(trace, self.table.add("int", k, 0), point)
            elif self.dynamic[k]:
                rows = [self.table.add("size", k, d) for d in range(len(v.max_shape))]
                v.shape = tuple(self._source(trace, row, point) for row in rows)
            else:
                v.shape = v.max_shape
        places = {v: k for k, v in enumerate(graph.inputs)}

        def item(tensor: Tensor, element: int) -> int:
            row = self.table.add("item", trace.row(element), places[tensor], INT_RANGE)
            return self._source(trace, row, point)

        refusal: PtegpuError | None = None
        try:
            for node in graph.nodes:
                for out, result in zip(node.outs, evaluate(node, item), strict=True):
                    if isinstance(out, Tensor):
                        out.shape = result  # type: ignore[assignment]
                    else:
                        out.value = result  # type: ignore[assignment]
        except PtegpuError as e:
            refusal = e
        family = TracedFamily(_guards(trace, refusal), {}, [[] for _ in self.steps], refusal=refusal)
        if refusal is None:
            for tensor in graph.tensors():
                family.values[tensor] = tuple(map(number, tensor.shape))
            for sym in self.syms:
                family.values[sym] = (number(sym.value),)
            again = Trace(self.table)
            self._set(family, again, point, family.values)
            family.bounds = self.indices.bounds(self.writer.places)
            family.guards = tuple(dict.fromkeys((*family.guards, *again.guards)))
        return family

    def step(self, family: TracedFamily, k: int, point: Point) -> TracedChoice:
        """Lower the node of step k at a point of its family."""
        tick()
        place, node = self.steps[k]
        trace = Trace(self.table)
        self._set(family, trace, point, (*node.values(), *node.outs))
        lowering = Lowering(self.writer, place, node, trace, self.grid.largest_value)
        refusal: PtegpuError | None = None
        try:
            lowering.run()
        except PtegpuError as e:
            refusal = e
        self.lowered += 1
        return TracedChoice(_guards(trace, refusal), lowering.dispatches, lowering.scratched, refusal)

    def check_declared(self, family: TracedFamily) -> None:
        """Raise InvalidProgram for a shape that differs from the declared one.

        A size that comes from data is at most the declared one, by the family's guards.
        """
        for node in self.graph.nodes:
            for out in node.outs:
                if not isinstance(out, Tensor):
                    continue
                pairs = list(zip(family.values.get(out, ()), out.max_shape))
                if any(n != m and not isinstance(n, Expr) for n, m in pairs):
                    shown = ", ".join(f"up to {m}" if isinstance(n, Expr) else str(n) for n, m in pairs)
                    text = f"{node.name} gives [{shown}], the program says {list(out.max_shape)}"
                    raise InvalidProgram(f"{text}: it contradicts itself, so export it again")

    def _source(self, trace: Trace, row: int, point: Point) -> int:
        return point[row] if self.plain else Size(trace, row, point[row])  # type: ignore[return-value]

    def _set(self, family: TracedFamily, trace: Trace, point: Point, values: Iterable[Value]) -> None:
        """Set values to the shapes of the family at a point, traced in `trace`."""

        def traced(n: Number, limit: float) -> int:
            if not isinstance(n, Expr):
                return n
            low, high = trace.range(n.row)
            trace.ranges[n.row] = max(low, -limit), min(high, limit)
            return trace.at(n.row, point[n.row])  # type: ignore[return-value]

        for v in values:
            numbers = family.values.get(v)
            if numbers is None:
                continue
            if isinstance(v, Tensor):
                v.shape = tuple(map(traced, numbers, v.max_shape))
            else:
                v.value = traced(numbers[0], 2**31)


def _guards(trace: Trace, refusal: PtegpuError | None) -> tuple[int, ...]:
    """Return the guards of a trace, without those of the message of a refusal.

    The message contains sizes, so its guards would exclude other sizes that are refused for the same reason.
    """
    guards = list(trace.guards.items())
    while refusal is not None and guards and guards[-1][1] == "text":
        guards.pop()
    return tuple(row for row, _ in guards)
