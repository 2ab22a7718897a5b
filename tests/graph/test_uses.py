"""The makers, readers and writers of a graph's values, and which values are kept."""

from __future__ import annotations

from tests.graphs import OVERWRITE, Sketch

from ptegpu.graph.graph import Node, Tensor
from ptegpu.graph.uses import Uses, replace_nodes

NEG, ADD = "aten.neg.default", "aten.add.Tensor"


def test_makers_readers_and_places():
    s = Sketch()
    x = s.input(2)
    a = s.tensor(NEG, x)
    s.returns(s.tensor(ADD, a, a, 1))
    uses = Uses(s.graph)
    neg, add = s.graph.nodes
    assert (neg, None) == (uses.maker[a], uses.maker.get(x))
    assert {x: [neg], a: [add]} == uses.readers
    assert {neg: 0, add: 1} == uses.place


def test_outputs_and_the_next_values_of_states_are_kept():
    s = Sketch()
    x, state = s.input(2), s.state(2)
    new, out, inner = s.tensor(NEG, x), s.tensor(NEG, x), s.tensor(NEG, x)
    s.returns((out, 3))
    s.graph.writebacks = [(state, new)]
    uses = Uses(s.graph)
    assert {out, state, new} == uses.kept
    assert inner not in uses.kept


def test_only_reader():
    s = Sketch()
    x = s.input(2)
    once, twice, never, returned = (s.tensor(NEG, x) for _ in range(4))
    s.returns(s.tensor(ADD, once, twice, 1), s.tensor(NEG, twice), s.tensor(NEG, returned), returned)
    uses = Uses(s.graph)
    add = s.graph.nodes[4]
    assert [add, None, None, None] == [uses.only_reader(v) for v in (once, twice, never, returned)]


def test_what_is_written_in_place_has_no_only_reader():
    s = Sketch()
    x, y = s.input(1), s.input(1)
    cache = s.tensor(NEG, x)
    s.tensor(OVERWRITE, cache, y)
    s.returns(y)
    assert Uses(s.graph).only_reader(cache) is None


def test_stays_within():
    s = Sketch()
    a = s.tensor(NEG, s.input(2))
    b, c = s.tensor(NEG, a), s.tensor(NEG, a)
    s.returns(b, c)
    uses, (_, first, second) = Uses(s.graph), s.graph.nodes
    assert uses.stays_within(a, [first, second])
    assert not uses.stays_within(a, [first])
    assert not uses.stays_within(b, [])


def test_steady():
    s = Sketch()
    x, y, state = s.input(1), s.input(1), s.state(1)
    s.tensor(NEG, state)
    s.tensor(OVERWRITE, state, x)
    s.returns(s.tensor(NEG, y))
    uses, (reads, writes, other) = Uses(s.graph), s.graph.nodes
    assert [False, True, True] == [uses.steady(n) for n in (reads, writes, other)]


def test_replace_nodes():
    s = Sketch()
    x = s.input(2)
    a = s.tensor(NEG, x)
    b = s.tensor(NEG, a)
    s.returns(s.tensor(NEG, b))
    first, second, last = s.graph.nodes
    new = Node(first.op, (x,), (b,), "new")
    replace_nodes(s.graph, {second: new}, {first, second})
    assert [new, last] == s.graph.nodes


def test_one_node_may_replace_several():
    s = Sketch()
    x = s.input(2)
    outs: list[Tensor] = [s.tensor(NEG, x) for _ in range(3)]
    first, second, third = s.graph.nodes
    new = Node(first.op, (x,), tuple(outs[:2]), "new")
    replace_nodes(s.graph, {first: new, third: new})
    assert [new, second] == s.graph.nodes
