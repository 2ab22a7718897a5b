"""Removal of dead nodes: unused ones go, those that write states stay."""

from __future__ import annotations

from tests.graphs import OVERWRITE, Sketch

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph
from ptegpu.passes.dead import remove_dead


def left(graph: Graph) -> list[str]:
    remove_dead(graph)
    return [n.name for n in graph.nodes]


def test_what_no_output_needs_is_removed_with_all_that_only_it_needs() -> None:
    s = Sketch()
    x = s.input(4)
    y = s.tensor("aten.exp.default", x)
    s.tensor("aten.abs.default", s.tensor("aten.sqrt.default", y))
    assert ["aten.exp.default #0"] == left(s.returns(y))


def test_order_stays() -> None:
    s = Sketch()
    x = s.input(4)
    a, b = s.tensor("aten.exp.default", x), s.tensor("aten.abs.default", x)
    y = s.tensor("aten.add.Tensor", b, a)
    assert ["aten.exp.default #0", "aten.abs.default #1", "aten.add.Tensor #2"] == left(s.returns(y))


def test_a_value_in_a_list_is_needed() -> None:
    s = Sketch()
    x = s.input(4)
    y = s.tensor("aten.cat.default", (x, s.tensor("aten.exp.default", x)))
    assert 2 == len(left(s.returns(y)))


def test_a_symbolic_int_is_needed_where_a_shape_or_an_output_has_it() -> None:
    s = Sketch()
    x = s.input(4, 2)
    rows, unused = s.node("sym_size.int", x, 0), s.node("sym_size.int", x, 1)
    y = s.tensor("aten.view_copy.default", x, (4, 2))
    s.graph.nodes[-1].args = (x, (rows, 2))
    s.node("add", unused, 1)
    assert ["sym_size.int #0", "aten.view_copy.default #2"] == left(s.returns(y))
    s = Sketch()
    total = s.node("add", s.sym(), 1)
    assert ["add #0"] == left(s.returns(total))


def test_the_new_value_of_a_state_is_needed() -> None:
    s = Sketch()
    old = s.state(4)
    new = s.tensor("aten.exp.default", old)
    s.graph.writebacks.append((old, new))
    assert ["aten.exp.default #0"] == left(s.returns())


def test_a_node_that_writes_a_state_in_place_stays_without_a_reader() -> None:
    s = Sketch()
    s.node(OVERWRITE, s.state(4), s.tensor("aten.exp.default", s.input(4)))
    assert ["aten.exp.default #0", "test.overwrite #1"] == left(s.returns())


def test_a_node_that_writes_a_temporary_stays_if_that_is_read_afterwards() -> None:
    s = Sketch()
    copy = s.tensor("aten.clone.default", s.input(4))
    s.node(OVERWRITE, copy, s.input(4))
    y = s.tensor("aten.relu.default", copy)
    assert 3 == len(left(s.returns(y)))


def test_a_node_that_writes_a_temporary_goes_if_that_was_read_only_before() -> None:
    s = Sketch()
    copy = s.tensor("aten.clone.default", s.input(4))
    y = s.tensor("aten.relu.default", copy)
    s.node(OVERWRITE, copy, s.input(4))
    assert ["aten.clone.default #0", "aten.relu.default #1"] == left(s.returns(y))


def test_a_node_with_one_needed_result_stays_whole() -> None:
    s = Sketch()
    y = s.tensor("aten.native_layer_norm.default", s.input(2, 4), (4,), None, None, 1e-5, dtype=[DType.F32] * 3)
    assert 1 == len(left(s.returns(y)))
