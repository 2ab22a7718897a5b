"""Patterns of nodes as data, and the matcher that applies them.

    PRODUCT = Op("aten.bmm.default", (Leaf("q"), Leaf("k")))
    SCALED = Op("aten.mul.Tensor", (PRODUCT, Number("factor")), swaps=True)
    match = find(node, Uses(graph), [SCALED])      # match.tensors["q"], match.numbers["factor"]

A pattern begins at a result and goes up to the operands. Between two of its nodes there may be others that the caller
has the matcher skip, such as views.
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
    """A tensor at which the pattern ends; with `behind`, the one that skipped nodes begin with."""

    name: str = ""
    test: Callable[[Tensor], bool] = lambda t: True
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A number, also as a constant of one element; one with a name is kept as `of` returns it."""

    name: str = ""
    test: Callable[[float], bool] = lambda x: True
    of: Callable[[float], float] = lambda x: x


@dataclass(frozen=True, slots=True)
class Op:
    """A node of one of these operators or roles, or that passes a test, whose first arguments match in their order.
    None matches any argument.

    With `swaps`, the first two may change places. `when` is asked with the node and its arguments in the order that
    matches.
    """

    which: str | tuple[str, ...] | Callable[[Node], bool]
    args: tuple[Pattern | None, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Later:
    """A pattern that is defined further down, perhaps one that contains this place."""

    pattern: Callable[[], Pattern]


Pattern: TypeAlias = Leaf | Number | Op | Either | Later


@dataclass(frozen=True, slots=True)
class Match:
    """What the names of a pattern stand for: each for one tensor, or for all numbers of that name."""

    uses: Uses
    nodes: Mapping[Node, None] = field(default_factory=dict)  # matched and skipped ones, the last of the graph first
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


def find(node: Node, uses: Uses, patterns: Iterable[Op], skips: Skips = lambda node: False) -> Match | None:
    """Return how the first of the patterns that does so matches the node and those before it."""
    matcher = _Matcher(uses, skips)
    return next((m for p in patterns if (m := matcher.node(p, node, Match(uses))) is not None), None)


def rewrite(graph: Graph, patterns: Iterable[Op], build: Callable[[Match], Node | None]) -> None:
    """Put one node in place of each match of a pattern, where the last of its nodes was.

    Only matches that nothing else looks into count, and whose nodes may run that late. `build` may still refuse one;
    then the next pattern is tried.
    """
    uses, new, gone = Uses(graph), dict[Node, Node](), set[Node]()
    for node in graph.nodes:
        for pattern in patterns:
            match = find(node, uses, [pattern])
            if match is None or not match.is_private() or not all(map(uses.steady, match.inner)):
                continue
            if gone.isdisjoint(match.nodes) and (built := build(match)) is not None:
                new[node] = built
                gone.update(match.nodes)
                break
    replace_nodes(graph, new, gone)


def number_of(a: Arg) -> float | None:
    """Return a number, also of a constant of one element."""
    if isinstance(a, Tensor):
        one = a.kind == "constant" and a.data is not None and a.data.size == 1
        return float(np.asarray(a.data).reshape(-1)[0]) if one else None
    return float(a) if isinstance(a, int | float) else None


@dataclass(frozen=True, slots=True)
class _Matcher:
    uses: Uses
    skips: Skips

    def node(self, p: Op, node: Node, m: Match) -> Match | None:
        """Return the match with a node and its operands, in one order or the other."""
        if not p.takes(node) or len(node.args) < len(p.args):
            return None
        m = replace(m, nodes={**m.nodes, node: None})
        orders = [node.args, (node.args[1], node.args[0], *node.args[2:])] if p.swaps else [node.args]
        return next((n for args in orders if (n := self.operands(p, node, args, m)) is not None), None)

    def operands(self, p: Op, node: Node, args: tuple[Arg, ...], m: Match) -> Match | None:
        if p.when is not None and not p.when(node, *args):
            return None
        match: Match | None = m
        for q, a in zip(p.args, args):
            match = match and (match if q is None else self.operand(q, a, match))
        return match

    def operand(self, p: Pattern, a: Arg, m: Match) -> Match | None:
        match p:
            case Leaf():
                a, m = self.behind(a, m) if p.behind else (a, m)
                return _named(m, p.name, a) if isinstance(a, Tensor) and p.test(a) else None
            case Number():
                x = number_of(a)
                if x is None or not p.test(x):
                    return None
                return replace(m, numbers={**m.numbers, p.name: (*m.numbers.get(p.name, ()), p.of(x))}) if p.name else m
            case Later():
                return self.operand(p.pattern(), a, m)
            case Either():
                first, m = self.behind(a, m)
                any_of = next((n for q in p.patterns if (n := self.operand(q, a, m)) is not None), None)
                return any_of and _named(any_of, p.name, first)
        first, m = self.behind(a, m)
        maker = self.uses.maker.get(first) if isinstance(first, Tensor) else None
        inner = self.node(p, maker, m) if maker else None
        return inner and _named(inner, p.name, first)

    def behind(self, a: Arg, m: Match) -> tuple[Arg, Match]:
        """Return what skipped nodes begin with, and the match with these."""
        while isinstance(a, Tensor) and (node := self.uses.maker.get(a)) is not None and self.skips(node):
            a, m = node.args[0], replace(m, nodes={**m.nodes, node: None})
        return a, m


def _named(m: Match, name: str, a: Arg) -> Match | None:
    """Return the match with a tensor of this name; None if another one has it."""
    if not name:
        return m
    if not isinstance(a, Tensor) or m.tensors.get(name, a) is not a:
        return None
    return replace(m, tensors={**m.tensors, name: a})
