"""Indices out of range, where the host knows them before a run: inputs, constants and symbolic ints.

The operators say in the registry which of their arguments are indices (`indexes`). An index tensor is traced back
through operators that only move values. If it comes from an input or a constant, its elements are checked against the
live size of what they index, before anything is submitted. Indices that the GPU computed are left to the kernels, which
never reach outside a buffer.

Which inputs need which bounds is found once per plan. A call then costs a minimum and a maximum per input that is used
as an index, and a comparison per symbolic int.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import INTS, DType
from ..errors import IndexOutOfRange
from ..graph.graph import Arg, Graph, Node, Sym, Tensor, Value, flatten
from ..ops import REGISTRY
from ..portable import PORTABLE, OutSpec, call

# Rules that only move values, with a name under which NumPy's kernel is found: a rule may have others too.
FOLLOWED = {d.steps: name for name, d in REGISTRY.items() if d.moves and d.view is None and name in PORTABLE}


class Move(NamedTuple):
    """One result of an operator that only moves values."""

    node: Node
    number: int


@dataclass(frozen=True, eq=False, slots=True)
class Guard:
    """An index of a node, and where its values come from."""

    node: Node
    number: int  # among the node's indices
    source: Tensor | Sym | int  # an input, a constant, a symbolic int or a literal
    moves: tuple[Move, ...]  # from the source to the index

    def bound(self) -> tuple[int, int]:
        """At the live shapes: the lowest value, and the end."""
        found = self.node.op.bounds(self.node.args)[self.number]
        return found.low, found.end

    @property
    def fixed(self) -> bool:
        """Whether the bound is the same in every call."""
        indices = {b.values for b in self.node.op.bounds(self.node.args) if isinstance(b.values, Tensor)}
        others = [v for v in self.node.values() if v not in indices]
        return all(isinstance(v, Tensor) and v.kind in ("constant", "state") for v in others)

    @property
    def viewed(self) -> bool:
        """Whether all elements of the source reach the index, in their order."""
        return all(node.op.view is not None for node, _ in self.moves)

    def first_outside(self, array: np.ndarray, low: int, end: int) -> tuple[int, list[int]] | None:
        """The first value of the source that reaches the index and is out of range, and its place in the source."""
        reaching = np.arange(array.size).reshape(array.shape)  # positions in the source, moved like the values
        for node, number in () if self.viewed else self.moves:
            if node.op.view is not None:
                out = node.outs[0]
                assert isinstance(out, Tensor)
                reaching = reaching.reshape(out.shape)
            else:
                args = [_plain(a, reaching) for a in node.args]
                reaching = call(FOLLOWED[node.op.steps], args, [OutSpec(DType.I64)] * len(node.outs))[number]
        values = array.reshape(-1)[reaching.reshape(-1)]
        outside = np.flatnonzero((values < low) | (values >= end))
        if not outside.size:
            return None
        place = np.unravel_index(reaching.reshape(-1)[outside[0]], array.shape)
        return int(values[outside[0]]), [int(k) for k in place]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the known indices of one plan may be. Inputs are given by their position, bounds are the tightest of all."""

    arrays: Sequence[tuple[int, int, int]] = ()  # (position, low, end)
    ints: Sequence[tuple[Sym, int, int]] = ()
    guards: Sequence[tuple[Guard, int, int]] = ()
    graph: Graph = field(default_factory=lambda: Graph(""))
    broken: str | None = None  # a constant that is out of range

    def check(self, inputs: Sequence[Any]) -> None:
        """Raise IndexOutOfRange for the first value that is outside; tensors on the device are not looked at."""
        if self.broken is not None:
            raise IndexOutOfRange(self.broken)
        for position, low, end in self.arrays:
            array = inputs[position]
            if isinstance(array, np.ndarray) and array.size and not (array.min() >= low and array.max() < end):
                self._raise_for(self.graph.inputs[position], array)
        for sym, low, end in self.ints:
            if not low <= sym.value < end:
                self._raise_for(sym, None)

    def _raise_for(self, source: Value, array: np.ndarray | None) -> None:
        for guard, low, end in self.guards:
            if guard.source is not source:
                continue
            if isinstance(source, Sym):
                if not low <= source.value < end:
                    raise IndexOutOfRange(f"{_origin(self.graph, source)} {_range(guard, low, end)}")
            elif array is not None and (found := guard.first_outside(array, low, end)):
                raise IndexOutOfRange(f"{source.name}: {_index(*found)} {_range(guard, low, end)}")


class Guards:
    """The indices of a graph that the host knows before a run."""

    def __init__(self, graph: Graph, dynamic: bool) -> None:
        self.graph, self.dynamic = graph, dynamic
        made = {out: Move(node, k) for node in graph.nodes for k, out in enumerate(node.outs)}
        mutated = {t for node in graph.nodes for t in node.mutates}
        self.guards: list[Guard] = []
        for node in graph.nodes:
            for number, bounded in enumerate(node.op.bounds(node.args)):
                moves, source = _trace(bounded.values, made, mutated)
                if source is not None:
                    self.guards.append(Guard(node, number, source, moves))

    def only_indices(self) -> set[Value]:
        """Inputs that are used as indices and for nothing else."""
        uses = Counter(v for n in self.graph.nodes for v in n.values())
        uses.update(flatten(tuple(self.graph.outputs)))
        indexed = Counter(g.source for g in self.guards if not g.moves)
        return {v for v in self.graph.inputs if v in indexed and uses[v] == indexed[v]}

    def limits(self) -> Limits:
        """At the live shapes."""
        return self._limits(self.guards)

    def fixed(self, positions: Iterable[int]) -> Limits:
        """Of these inputs and of constants, where bounds and what reaches the index are the same in every call."""
        inputs = {self.graph.inputs[p] for p in positions}
        tensors = [g for g in self.guards if isinstance(g.source, Tensor)]
        given = [g for g in tensors if g.source in inputs or g.source.kind == "constant"]  # type: ignore[union-attr]
        return self._limits([g for g in given if not self.dynamic or (g.fixed and g.viewed)])

    def _limits(self, guards: Sequence[Guard]) -> Limits:
        bounded = [(guard, *guard.bound()) for guard in guards]
        tightest: dict[Value, tuple[int, int]] = {}
        broken = None
        for guard, low, end in bounded:
            source = guard.source
            if isinstance(source, int):
                if not low <= source < end:
                    broken = broken or f"the position {source} {_range(guard, low, end)}"
            elif isinstance(source, Tensor) and source.data is not None:
                if source.numel and not (source.data.min() >= low and source.data.max() < end):
                    found = guard.first_outside(source.data, low, end)
                    if found:
                        broken = broken or f"constant {source.name}: {_index(*found)} {_range(guard, low, end)}"
            else:
                lowest, ending = tightest.get(source, (low, end))
                tightest[source] = max(low, lowest), min(end, ending)
        inputs = {v: p for p, v in enumerate(self.graph.inputs)}
        arrays = [(inputs[v], *bound) for v, bound in tightest.items() if isinstance(v, Tensor)]
        ints = [(v, *bound) for v, bound in tightest.items() if isinstance(v, Sym)]
        return Limits(arrays, ints, bounded, self.graph, broken)


def _trace(
    values: Tensor | Sym | int, made: dict[Value, Move], mutated: set[Tensor]
) -> tuple[tuple[Move, ...], Tensor | Sym | int | None]:
    """What moved the values on their way, and what they are: None, if the GPU computes them."""
    moves: list[Move] = []
    while isinstance(values, Tensor) and values.kind == "temp":
        move = made.get(values)
        if move is None or values in mutated or not _keeps_values(move):
            return (), None
        moves.append(move)
        first = move.node.args[0]
        assert isinstance(first, Tensor)
        values = first
    known = not isinstance(values, Tensor) or values.kind == "input" or (values.kind == "constant" and not values.parts)
    return tuple(reversed(moves)), values if known else None


def _keeps_values(move: Move) -> bool:
    op, source, out = move.node.op, move.node.args[0], move.node.outs[move.number]
    if not op.moves or not isinstance(source, Tensor) or not isinstance(out, Tensor):
        return False
    exact = out.dtype is source.dtype or (out.dtype is DType.I32 and source.dtype in (*INTS, DType.BOOL))
    return exact and (op.view is not None or op.steps in FOLLOWED)


def _plain(a: Arg, positions: np.ndarray) -> Any:
    """An argument as NumPy's kernels want it; the only tensor is the one that is moved."""
    if isinstance(a, tuple):
        return [_plain(x, positions) for x in a]
    return positions if isinstance(a, Tensor) else int(a) if isinstance(a, Sym) else a


def _index(value: int, place: list[int]) -> str:
    return f"the index {value} at {place}"


def _range(guard: Guard, low: int, end: int) -> str:
    return f"is out of range for {guard.node.name}, which takes {low} to {end - 1}"


def _origin(graph: Graph, sym: Sym) -> str:
    """A symbolic int with what it was made from."""
    made = {out: node for node in graph.nodes for out in node.outs}
    node = made.get(sym)
    if node is None:
        return f"{sym.name}: the position {sym.value}"
    first = node.args[0]
    if isinstance(first, Tensor) and "data" in node.op.wants:
        assert node.op.sym is not None
        place = np.unravel_index(node.op.sym(*node.op.bind(node.args), data=None), first.shape)
        return f"{first.name}: the position {sym.value} at {[int(k) for k in place]}"
    queue, sources = [sym], dict[str, None]()
    while queue:
        value = queue.pop()
        if value in made:
            queue += [v for v in flatten(made[value].args) if isinstance(v, Sym)]
            sources |= {v.name: None for v in flatten(made[value].args) if isinstance(v, Tensor)}
        else:
            sources[value.name] = None
    return f"the position {sym.value}, computed from {' and '.join(sources)},"
