"""Patterns of nodes as data, and the matcher that applies them.

    PRODUCT = Op("aten.bmm.default", (Leaf("q"), Leaf("k")))
    SCALED = Op("aten.mul.Tensor", (PRODUCT, Number("factor")), swaps=True)
    match = find(node, Uses(graph), [SCALED])      # match.tensors["q"], match.numbers["factor"]

A pattern begins at a result and goes up to the operands. Between two of its nodes the matcher may pass others, such as
views, if the caller's `skips` accepts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from .graph import Arg, Graph, Node, Tensor
from .uses import Uses, replace_nodes

Skips: TypeAlias = Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor where the pattern ends. With `behind`, skipped nodes above it are passed first."""

    name: str = ""
    test: Callable[[Tensor], bool] = lambda t: True
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A number, or a constant of one element. With a name, the match has the value that `of` returns."""

    name: str = ""
    test: Callable[[float], bool] = lambda x: True
    of: Callable[[float], float] = lambda x: x


@dataclass(frozen=True, slots=True)
class Op:
    """A node of one of these operators or roles, or that passes a test, whose first arguments match in order.

    None matches any argument. With `swaps`, the first two arguments may change places. `when` is called with the node
    and its arguments in matching order.
    """

    which: str | tuple[str, ...] | Callable[[Node], bool]
    args: tuple[Pattern, ...] = ()
    name: str = ""
    swaps: bool = False
    when: Callable[..., bool] | None = None

    def takes(self, node: Node) -> bool:
        if callable(self.which):
            return self.which(node)
        names = (self.which,) if isinstance(self.which, str) else self.which
        return node.op.name in names or node.op.role in names


class Either:
    """The first of several patterns that matches."""

    def __init__(self, *patterns: Pattern, name: str = "") -> None:
        self.patterns, self.name = patterns, name


Pattern: TypeAlias = (
    "Leaf | Number | Op | Either | Callable[[], Pattern] | None"  # a function, for a pattern defined later
)


@dataclass(frozen=True, slots=True)
class Match:
    """A match: the nodes of a pattern, a tensor for each name, and the list of numbers for each name."""

    uses: Uses
    skips: Skips
    nodes: Mapping[Node, None] = field(default_factory=dict)  # matched and skipped, the last of the graph first
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # in the order of the data

    def node(self, name: str) -> Node:
        """Return the node whose result has the name."""
        return self.uses.maker[self.tensors[name]]

    @property
    def inner(self) -> list[Node]:
        """All nodes but the one that the pattern begins at."""
        return list(self.nodes)[1:]

    def is_private(self) -> bool:
        """Return True if nothing else uses what the inner nodes compute."""
        return all(self.uses.stays_within(o, self.nodes) for n in self.inner for o in n.outs)

    def at(self, p: Op, node: Node) -> Match | None:
        """Return the match extended by a node and its operands, in either order; None if they differ."""
        if not p.takes(node) or len(node.args) < len(p.args):
            return None
        extended = replace(self, nodes={**self.nodes, node: None})
        orders = [node.args, (*node.args[1::-1], *node.args[2:])] if p.swaps else [node.args]
        fitting = (args for args in orders if p.when is None or p.when(node, *args))
        return next((m for args in fitting if (m := extended._all(p.args, args)) is not None), None)

    def _all(self, patterns: Iterable[Pattern], args: tuple[Arg, ...]) -> Match | None:
        m: Match | None = self
        for p, a in zip(patterns, args):
            m = m and m._operand(p, a)
        return m

    def _operand(self, p: Pattern, a: Arg) -> Match | None:
        m: Match | None
        match p:
            case None:
                return self
            case Number():
                x = number_of(a)
                if x is None or not p.test(x):
                    return None
                return replace(self, numbers={**self.numbers, p.name: (*self.numbers.get(p.name, ()), p.of(x))})
            case Leaf():
                m, a = self._behind(a) if p.behind else (self, a)
                m = m if isinstance(a, Tensor) and p.test(a) else None
            case Either():
                passed, a = self._behind(a)
                m = next((m for q in p.patterns if (m := passed._operand(q, a)) is not None), None)
            case Op():
                passed, a = self._behind(a)
                maker = self.uses.maker.get(a) if isinstance(a, Tensor) else None
                m = passed.at(p, maker) if maker else None
            case _:
                return self._operand(p(), a)
        return m and m._named(p.name, a)

    def _behind(self, a: Arg) -> tuple[Match, Arg]:
        """Return the match with skipped nodes added, and the operand of the first of them."""
        nodes = dict(self.nodes)
        while isinstance(a, Tensor) and (node := self.uses.maker.get(a)) is not None and self.skips(node):
            nodes[node] = None
            a = node.args[0]
        return replace(self, nodes=nodes), a

    def _named(self, name: str, a: Arg) -> Match | None:
        """Return the match with a tensor of this name; None if the name stands for another tensor."""
        if not name:
            return self
        if not isinstance(a, Tensor) or self.tensors.get(name, a) is not a:
            return None
        return replace(self, tensors={**self.tensors, name: a})


def find_match(node: Node, uses: Uses, patterns: Iterable[Op], skips: Skips = lambda node: False) -> Match | None:
    """Return the match of the first pattern that fits the node and its producers; None if none does."""
    return next((m for p in patterns if (m := Match(uses, skips).at(p, node)) is not None), None)


def rewrite(graph: Graph, patterns: Iterable[Op], build: Callable[[Match], Node | None]) -> None:
    """Replace each match of a pattern by one node, at the place of the match's last node.

    A match counts if nothing else uses its inner results and its nodes may run that late. `build` may refuse it by
    returning None; then the next pattern is tried.
    """
    uses, new, gone = Uses(graph), dict[Node, Node](), set[Node]()
    for node in graph.nodes:
        for pattern in patterns:
            match = find_match(node, uses, [pattern])
            if match is None or not match.is_private() or not all(map(uses.steady, match.inner)):
                continue
            if gone.isdisjoint(match.nodes) and (built := build(match)) is not None:
                new[node] = built
                gone.update(match.nodes)
                break
    replace_nodes(graph, new, gone)


def number_of(a: Arg) -> float | None:
    """Return the value of a number or of a constant of one element; None for anything else."""
    if isinstance(a, Tensor):
        is_number = a.kind == "constant" and a.data is not None and a.data.size == 1
        return float(np.asarray(a.data).reshape(-1)[0]) if is_number else None
    return float(a) if isinstance(a, int | float) else None
