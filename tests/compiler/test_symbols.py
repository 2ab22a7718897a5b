"""The words of the syms buffer, made twice: with sizes that remember, for all, and with plain ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tests.cases import sizes_of
from tests.graphs import Sketch

from ptegpu.compiler.plan_writer import CAPACITY, PlanWriter
from ptegpu.compiler.planner import Planner, planned
from ptegpu.dtypes import DType
from ptegpu.errors import UnsupportedProgram
from ptegpu.graph.graph import Graph, Sym, Tensor
from ptegpu.passes.memory import Memory
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import Target

COMPARES = ("lt", "le", "gt", "ge", "eq", "ne")
BINARY = ("add", "sub", "mul", "floordiv", "mod", "sym_min", "sym_max", *COMPARES)
VERBS: dict[str, Callable[..., int]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", *COMPARES)},
    "min": min,
    "max": max,
    "not": operator.not_,
}


def agreed(graph: Graph, scalars: Sequence[int] = (), inputs: Sequence[np.ndarray] = ()) -> list[int]:
    """The words at these inputs, which the plan for all sizes and one made for these alone must both give."""
    left = {Sym: iter(scalars), Tensor: iter(inputs)}
    values = [next(left[type(v)]) for v in graph.inputs]
    dynamic = [True] * len(values)
    words = []
    for plain in (False, True):
        planner = Planner(graph, Target(), dynamic, plain=plain)
        planner.extend(*sizes_of(values))
        words.append(plan_at(planner.plan(), *sizes_of(values)).families[0].words)
    assert words[0] == words[1]
    covered = Planner(graph, Target(), dynamic).cover()  # of ints, no more than 0 is looked at
    covered.extend(*sizes_of(values))
    assert words[0] == plan_at(covered.plan(), *sizes_of(values)).families[0].words
    return list(words[0])


@pytest.mark.parametrize("spelling", ["{}", "executorch_prim.{}.Scalar"])
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("a, b", [(7, 2), (-7, 2), (3, 3)])
def test_arithmetic(name: str, spelling: str, a: int, b: int) -> None:
    s = Sketch()
    x, y = s.sym(), s.sym()
    result = s.node(spelling.format(name), x, y)
    verb = VERBS[name.removeprefix("sym_")]
    assert [a, b, int(verb(a, b))] == agreed(s.returns(result), [a, b])


@pytest.mark.parametrize("name", ["neg", "executorch_prim.neg.Scalar"])
def test_negation(name: str) -> None:
    s = Sketch()
    result = s.node(name, s.sym())
    assert [4, -4] == agreed(s.returns(result), [4])


@pytest.mark.parametrize("value, expected", [(0, 1), (5, 0)])
def test_not(value: int, expected: int) -> None:
    s = Sketch()
    result = s.node("executorch_prim.sym_not.Scalar", s.sym())
    assert [value, expected] == agreed(s.returns(result), [value])


def test_literals_get_words_only_where_a_kernel_reads_them() -> None:
    s = Sketch()
    x = s.sym()
    more = s.node("add", x, 3)
    twice = s.node("mul", more, 2)
    again = s.node("sub", twice, 3)
    assert [5, 8, 16, 13] == agreed(s.returns(again), [5])
    row = s.tensor("aten.select_copy.int", s.input(4, 6), 0, x)
    col = s.tensor("aten.select_copy.int", row, 0, 2)
    s.graph.outputs.append(col)
    words = agreed(s.graph, [3], [np.zeros((4, 6), np.float32)])
    assert [3, 6, 12, 9] == words[:4]
    assert set(words[4:]) <= {2}


def test_sizes_are_expressions() -> None:
    s = Sketch()
    x = s.input(9, 4)
    rows, last = s.node("sym_size.int", x, 0), s.node("aten.sym_size.int", x, -1)
    count = s.node("aten.sym_numel.default", x)
    product = s.node("mul", rows, last)
    assert [6, 4, 24, 24] == agreed(s.returns(product, count), inputs=[np.zeros((6, 4), np.float32)])


@pytest.mark.parametrize("dim, index, expected", [(0, 1, 20), (1, 2, 12), (0, -1, 20), (-1, -3, 10)])
def test_items_are_read_from_inputs(dim: int, index: int, expected: int) -> None:
    s = Sketch()
    s.input(1)
    table = s.input(2, 3, dtype=DType.I32)
    item = s.node("et_vk.select_as_symint.default", table, dim, index)
    values = np.array([[10, 11, 12], [20, 21, 22]], np.int32)
    assert [expected] == agreed(s.returns(item), inputs=[np.zeros(1, np.float32), values])


def test_an_item_of_a_constant_is_a_constant() -> None:
    s = Sketch()
    item = s.node("et_vk.select_as_symint.default", s.constant(np.array([4, 5], np.int32)), 0, 1)
    graph = s.returns(item)
    assert [5] == agreed(graph)
    assert (5,) == planned(graph, Target()).families[0].words


def test_ints_among_the_results_are_numbers() -> None:
    s = Sketch()
    x, y = s.sym(), s.sym()
    total = s.node("add", x, y)
    plan = planned(s.returns(total, y, 7), Target())
    assert (9, 4, 7) == plan_at(plan, [5, 4], lambda *_: 0).families[0].outputs


def test_a_graph_without_symbolic_ints_has_no_words() -> None:
    s = Sketch()
    plan = planned(s.returns(s.tensor("aten.relu.default", s.input(4))), Target())
    assert () == plan.families[0].words
    assert "syms" not in {b.role for b in plan.buffers}


def test_more_words_than_the_buffer_holds_are_refused() -> None:
    tables = PlanWriter(Graph("g"), Memory(), Target())
    for value in range(CAPACITY):
        tables.word(value)
    with pytest.raises(UnsupportedProgram) as error:
        tables.word(CAPACITY)
    assert "graph g has more than 256 symbolic ints" == str(error.value)
    assert 7 == tables.word(7)
