"""The matcher of patterns: operands, orders, alternatives, numbers, skipped nodes, names; and rewriting by it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graphs import OVERWRITE, Sketch

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Node, Tensor
from ptegpu.graph.match import Either, Leaf, Match, Number, Op, Pattern, find_match, number_of, rewrite
from ptegpu.graph.uses import Uses

NEG, ADD, MUL, DIV = "aten.neg.default", "aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor"
VIEW, ABS = "aten.view_copy.default", "aten.abs.default"


def is_view(node: Node) -> bool:
    return node.op.view is not None


def match(s: Sketch, *patterns: Op) -> Match | None:
    """Match the last node of a sketch."""
    return find_match(s.graph.nodes[-1], Uses(s.graph), patterns, is_view)


def test_a_chain():
    s = Sketch()
    x = s.input(2)
    s.tensor(NEG, s.tensor(ABS, x))
    m = match(s, Op(NEG, (Op(ABS, (Leaf("x"),), "absolute"),)))
    assert m is not None
    assert s.graph.nodes[::-1] == list(m.nodes)
    assert s.graph.nodes[:1] == m.inner == [m.node("absolute")]
    assert x is m.tensors["x"]


@pytest.mark.parametrize(
    "pattern",
    [
        Op(ABS),
        Op(NEG, (Op(NEG),)),
        Op(NEG, (Leaf(test=lambda t: t.rank == 2),)),
        Op(NEG, (Leaf(), Leaf())),
        Op("product"),
    ],
)
def test_what_does_not_match(pattern):
    s = Sketch()
    s.tensor(NEG, s.input(2))
    assert match(s, pattern) is None


def test_operators_are_named_by_role_or_by_a_test_too():
    s = Sketch()
    s.tensor("aten.mm.default", s.input(2, 3), s.input(3, 4))
    assert match(s, Op("product")) and match(s, Op(("norm", "product"))) and match(s, Op(lambda n: len(n.args) == 2))
    assert match(s, Op("norm")) is None and match(s, Op(lambda n: False)) is None


def test_the_first_pattern_that_matches():
    s = Sketch()
    x = s.input(2)
    s.tensor(NEG, x)
    m = match(s, Op(NEG, (Op(ABS),)), Op(NEG, (Leaf("a"),)), Op(NEG, (Leaf("b"),)))
    assert m is not None
    assert {"a": x} == m.tensors


@pytest.mark.parametrize("swapped", [False, True])
def test_both_orders(swapped):
    s = Sketch()
    x, y = s.input(2), s.input(2)
    a = s.tensor(NEG, x)
    s.tensor(ADD, *((y, a) if swapped else (a, y)), 1)
    when = lambda node, first, second, alpha: first is a and second is y and alpha == 1
    in_order, both = Op(ADD, (Op(NEG), Leaf("y")), when=when), Op(ADD, (Op(NEG), Leaf("y")), swaps=True, when=when)
    assert swapped == (match(s, in_order) is None)
    m = match(s, both)
    assert m is not None
    assert y is m.tensors["y"]


def test_numbers_are_collected():
    s = Sketch()
    two, four = s.constant(np.array(2.0, np.float32)), s.constant(np.array([4.0], np.float32))
    t = s.tensor("aten.mul.Scalar", s.input(3), 8)
    s.tensor(DIV, s.tensor(MUL, two, t), four)
    any_mul = (MUL, "aten.mul.Scalar")
    scaled: Pattern = Either(
        Op(any_mul, (lambda: scaled, Number("factor")), swaps=True),
        Op(DIV, (lambda: scaled, Number("factor", of=lambda x: 1 / x))),
        Leaf("x"),
    )
    m = match(s, Op(DIV, (scaled, Number("factor", of=lambda x: 1 / x))))
    assert m is not None
    assert ({"factor": (8.0, 2.0, 0.25)}, {"x": s.graph.inputs[0]}) == (m.numbers, m.tensors)


def test_a_number_that_fails_its_test():
    s = Sketch()
    s.tensor("aten.mul.Scalar", s.input(3), 0)
    assert match(s, Op("aten.mul.Scalar", (None, Number(test=bool)))) is None
    assert match(s, Op("aten.mul.Scalar", (None, Number())))


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (3, 3.0),
        (True, 1.0),
        (None, None),
        ("x", None),
        (Tensor("c", DType.F32, (1, 1), "constant", np.full((1, 1), 5, np.float32)), 5.0),
        (Tensor("c", DType.F32, (2,), "constant", np.ones(2, np.float32)), None),
        (Tensor("x", DType.F32, ()), None),
    ],
)
def test_number_of(argument, expected):
    assert expected == number_of(argument)


def test_nodes_between_are_skipped():
    s = Sketch()
    x = s.input(2, 3)
    s.tensor(NEG, s.tensor(VIEW, s.tensor(VIEW, s.tensor(ABS, s.tensor(VIEW, x, (6,))), (3, 2)), (6, 1)))
    m = match(s, Op(NEG, (Op(ABS, (Leaf("x"),)),)))
    assert m is not None
    assert s.graph.nodes[:0:-1] == list(m.nodes)  # the maker of the leaf is not part of it
    assert s.graph.nodes[0].outs[0] is m.tensors["x"]
    behind = match(s, Op(NEG, (Op(ABS, (Leaf("x", behind=True),)),)))
    assert behind is not None
    assert (x, s.graph.nodes[::-1]) == (behind.tensors["x"], list(behind.nodes))
    assert find_match(s.graph.nodes[-1], Uses(s.graph), [Op(NEG, (Op(ABS),))]) is None


@pytest.mark.parametrize("same", [False, True])
def test_a_name_stands_for_one_tensor(same):
    s = Sketch()
    x, y = s.input(2), s.input(2)
    s.tensor(MUL, s.tensor(NEG, x), s.tensor(ABS, x if same else y))
    assert same == (match(s, Op(MUL, (Op(NEG, (Leaf("x"),)), Op(ABS, (Leaf("x"),))))) is not None)


def test_an_alternative_that_fails_leaves_nothing():
    s = Sketch()
    x = s.input(2)
    s.tensor(NEG, s.tensor(ABS, s.tensor(NEG, x)))
    pattern = Either(Op(ABS, (Op(NEG, (Op(ABS),), "a"),)), Op(ABS, (Leaf("b"),)), name="c")
    m = match(s, Op(NEG, (pattern,)))
    assert m is not None
    assert {"b": s.graph.nodes[0].outs[0], "c": s.graph.nodes[1].outs[0]} == m.tensors
    assert s.graph.nodes[:0:-1] == list(m.nodes)


def test_private():
    s = Sketch()
    a = s.tensor(ABS, s.input(2))
    s.tensor(NEG, a)
    pattern = Op(NEG, (Op(ABS),))
    m = match(s, pattern)
    assert m is not None and m.is_private()
    s.returns(a)
    m = match(s, pattern)
    assert m is not None and not m.is_private()


def fused(m: Match) -> Node:
    last, first = m.nodes
    return Node(last.op, first.args, last.outs, "both")


def test_rewriting():
    s = Sketch()
    x = s.input(2)
    a = s.tensor(ABS, x)
    other = s.tensor(NEG, x)
    s.returns(s.tensor(NEG, a), other)
    rewrite(s.graph, [Op(NEG, (Op(ABS),))], fused)
    assert [f"{NEG} #1", "both"] == [n.name for n in s.graph.nodes]
    assert (x,) == s.graph.nodes[1].args


def test_rewriting_tries_the_next_pattern_where_one_is_refused():
    s = Sketch()
    s.returns(s.tensor(NEG, s.tensor(ABS, s.input(2))))
    seen_counts: list[int] = []

    def build(m: Match) -> Node | None:
        seen_counts.append(len(m.nodes))
        return None

    rewrite(s.graph, [Op(NEG, (Op(ABS),)), Op(NEG)], build)
    assert ([2, 1], 2) == (seen_counts, len(s.graph.nodes))


@pytest.mark.parametrize("why", ["read by others", "an output", "written in between"])
def test_what_others_use_is_not_rewritten(why):
    s = Sketch()
    x = s.state(1)
    a = s.tensor(ABS, x)
    if why == "written in between":
        s.tensor(OVERWRITE, x, s.input(1))
    s.returns(s.tensor(NEG, a))
    if why == "read by others":
        s.returns(s.tensor(ABS, a))
    elif why == "an output":
        s.returns(a)
    before = list(s.graph.nodes)
    rewrite(s.graph, [Op(NEG, (Op(ABS),))], fused)
    assert before == s.graph.nodes
