"""Removal of views: identities go, equal views merge, written and returned ones stay."""

from __future__ import annotations

from tests.graphs import OVERWRITE, Sketch

from ptegpu.graph.graph import Graph
from ptegpu.passes.views import merge_views

VIEW, ALIAS, PERMUTE = "aten.view_copy.default", "aten.alias_copy.default", "aten.permute_copy.default"


def left(graph: Graph) -> list[str]:
    merge_views(graph)
    return [n.op.name for n in graph.nodes]


def test_what_changes_nothing_goes():
    s = Sketch()
    x = s.tensor(ALIAS, s.tensor(VIEW, s.tensor("aten.neg.default", s.input(2, 3)), (2, 3)))
    assert ["aten.neg.default", "aten.relu.default"] == left(s.returns(s.tensor("aten.relu.default", x)))


def test_equal_ones_are_one():
    s = Sketch()
    x = s.input(2, 3)
    first, second = s.tensor(PERMUTE, x, (1, 0)), s.tensor(PERMUTE, x, (1, 0))
    turned = s.tensor(VIEW, x, (3, 2))
    total = s.tensor("aten.add.Tensor", s.tensor("aten.add.Tensor", first, second), turned)
    graph = s.returns(total)
    assert [PERMUTE, VIEW, "aten.add.Tensor", "aten.add.Tensor"] == left(graph)
    assert graph.nodes[2].args[0] is graph.nodes[2].args[1]


def test_sums_with_nothing_go():
    s = Sketch()
    x = s.input(2, 3)
    n = s.node("add", s.node("sym_size.int", x, 0), 0)
    n.value = 2  # type: ignore[union-attr]
    assert ["sym_size.int", VIEW] == left(s.returns(s.tensor("aten.view_copy.default", x, (n, -1))))


def test_results_and_what_is_written_stay():
    s = Sketch()
    cache = s.state(2, 3)
    before = s.tensor(ALIAS, cache)
    s.node(OVERWRITE, cache, s.input(2, 3))
    graph = s.returns(s.tensor("aten.relu.default", before), s.tensor(ALIAS, s.tensor("aten.neg.default", before)))
    assert [ALIAS, "test.overwrite", "aten.relu.default", "aten.neg.default", ALIAS] == left(graph)
