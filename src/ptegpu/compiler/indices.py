"""Bounds of the indices that the host knows before a run: inputs, constants and symbolic ints.

The operators declare which of their arguments are indices (`indexes`). An index tensor is traced back through operators
that only move values. If it comes from an input or a constant, its elements are checked against the live size of what
they index, before anything is submitted. Indices computed on the GPU are left to the kernels, which never access
anything outside of a buffer.

The result is the `bounds` of a plan's family, which `runtime/runner.py` checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..dtypes import INTS, DType
from ..graph.graph import Arg, Graph, Node, Sym, Tensor, Value, flatten
from ..ops import REGISTRY
from ..ops.registry import normalise_dim
from ..passes.memory import Memory
from ..plan.plan import VALUES, Bound, Moved
from ..portable import PORTABLE
from ..sizes import Size
from .plan_writer import number

# Rules that only move values, each with a name that has a NumPy kernel.
FOLLOWED = {d.steps: name for name, d in REGISTRY.items() if d.moves and d.view is None and name in PORTABLE}


class MovingNode(NamedTuple):
    """A node that only moves values, and which of its results is used."""

    node: Node
    number: int


@dataclass(frozen=True, eq=False, slots=True)
class TracedIndex:
    """An index of a node, and the source of its values."""

    node: Node
    number: int  # among the node's indices
    source: Tensor | Sym | int  # an input, a constant, a symbolic int or a literal
    moves: tuple[MovingNode, ...]  # from the source to the index


class Indices:
    """The indices of a graph that the host knows before a run."""

    def __init__(self, graph: Graph, memory: Memory) -> None:
        self.graph, self.memory = graph, memory
        makers = {out: MovingNode(node, k) for node in graph.nodes for k, out in enumerate(node.outs)}
        mutated = {t for node in graph.nodes for t in node.mutates}
        self.traced: list[TracedIndex] = []
        for node in graph.nodes:
            for k, bounded in enumerate(node.op.bounds(node.args)):
                moves, source = _trace(bounded.values, makers, mutated)
                if source is not None:
                    self.traced.append(TracedIndex(node, k, source, moves))
        uses = Counter(v for n in graph.nodes for v in n.values())
        uses.update(flatten(tuple(graph.outputs)))
        indexed = Counter(index.source for index in self.traced if not index.moves)
        self.index_only = {v for v in graph.inputs if v in indexed and uses[v] == indexed[v]}  # inputs

    def bounds(self, buffers: Mapping[str, int]) -> tuple[Bound, ...]:
        """Return the bounds at the live shapes; `buffers` maps names to positions in the plan."""
        return tuple(self._bound(index, buffers) for index in self.traced)

    def _bound(self, index: TracedIndex, buffers: Mapping[str, int]) -> Bound:
        source = index.source
        bounded = index.node.op.bounds(index.node.args)[index.number]
        low, end, node = number(bounded.low), number(bounded.end), index.node.name
        if isinstance(source, Tensor):
            moves = tuple(_moved(m) for m in index.moves)
            if source.kind == "constant":
                buffer = buffers[self.memory.buffer_of[source].name]
                text = f"constant {source.name}: the index {{}} at {{}}"
                return Bound("constant", buffer, low, end, text, node, source.dtype, source.max_shape, moves)
            place = self.graph.inputs.index(source)
            return Bound("input", place, low, end, f"{source.name}: the index {{}} at {{}}", node, moves=moves)
        value = number(source.value) if isinstance(source, Sym) else source
        text = _origin(self.graph, source) if isinstance(source, Sym) else "the position {}"
        return Bound("int", value, low, end, text, node)


def _moved(move: MovingNode) -> Moved:
    node = move.node
    out = node.outs[move.number]
    assert isinstance(out, Tensor)
    shape = tuple(map(number, out.shape))
    if node.op.view is not None:
        return Moved("view", (), 0, 1, shape)
    return Moved(FOLLOWED[node.op.steps], tuple(map(_plain, node.args)), move.number, len(node.outs), shape)


def _trace(
    values: Tensor | Sym | int, makers: dict[Value, MovingNode], mutated: set[Tensor]
) -> tuple[tuple[MovingNode, ...], Tensor | Sym | int | None]:
    """Return the moves of an index's values, and their source; None if the GPU computes them."""
    moves: list[MovingNode] = []
    while isinstance(values, Tensor) and values.kind == "temp":
        move = makers.get(values)
        if move is None or values in mutated or not _keeps_values(move):
            return (), None
        moves.append(move)
        first = move.node.args[0]
        assert isinstance(first, Tensor)
        values = first
    on_host = (
        not isinstance(values, Tensor) or values.kind == "input" or (values.kind == "constant" and not values.parts)
    )
    return tuple(reversed(moves)), values if on_host else None


def _keeps_values(move: MovingNode) -> bool:
    op, source, out = move.node.op, move.node.args[0], move.node.outs[move.number]
    if not op.moves or not isinstance(source, Tensor) or not isinstance(out, Tensor):
        return False
    exact = out.dtype is source.dtype or (out.dtype is DType.I32 and source.dtype in (*INTS, DType.BOOL))
    return exact and (op.view is not None or op.steps in FOLLOWED)


def _plain(a: Arg) -> object:
    """Return an argument as data; the only tensor is the one that is moved."""
    if isinstance(a, tuple):
        return tuple(map(_plain, a))
    if isinstance(a, Tensor):
        return VALUES
    return number(a.value) if isinstance(a, Sym) else a


def _place(node: Node, source: Tensor) -> list[int]:
    """Return the position of the element that a node reads; in a dynamic dimension, the last one is -1."""
    _, *where = node.op.bind(node.args)
    place = [0] * source.rank
    if where and place:
        dim, index = where
        k = normalise_dim(dim, source.rank)
        size = source.shape[k]
        place[k] = index if isinstance(size, Size) else index % size
    return place


def _origin(graph: Graph, sym: Sym) -> str:
    """Return a message about a symbolic int that names its sources, with {} for the value."""
    makers = {out: node for node in graph.nodes for out in node.outs}
    node = makers.get(sym)
    if node is None:
        return f"{sym.name}: the position {{}}"
    first = node.args[0]
    if isinstance(first, Tensor) and node.op.reads:
        return f"{first.name}: the position {{}} at {_place(node, first)}"
    queue, sources = [sym], dict[str, None]()
    while queue:
        value = queue.pop()
        operands = list(flatten(makers[value].args)) if value in makers else []
        queue += [v for v in operands if isinstance(v, Sym)]
        sources |= {v.name: None for v in operands if isinstance(v, Tensor)}
        if value not in makers:
            sources[value.name] = None
    return f"the position {{}}, computed from {' and '.join(sources)},"
