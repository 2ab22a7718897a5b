"""The words of the syms buffer, made twice: by the shape engine, and by the plan's own steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from ptegpu.plan.symbols import CAPACITY, Symbols
from tests.graphs import Sketch

from ptegpu.dtypes import DType
from ptegpu.errors import UnsupportedProgram
from ptegpu.graph.graph import Graph, Shape, Sym, Tensor, Value
from ptegpu.graph.live import Live
from ptegpu.plan.plan import SymStep

COMPARES = ("lt", "le", "gt", "ge", "eq", "ne")
BINARY = ("add", "sub", "mul", "floordiv", "mod", "sym_min", "sym_max", *COMPARES)
VERBS: dict[str, Callable[..., int]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", *COMPARES)},
    "min": min,
    "max": max,
    "not": operator.not_,
}


def interpret(steps: Sequence[SymStep], scalars: Sequence[int], inputs: Sequence[np.ndarray]) -> dict[int, int]:
    """What a runner without a shape engine does with a plan's steps."""
    words: dict[int, int] = {}
    for step in steps:
        match step.op:
            case "input":
                words[step.target] = scalars[step.args[0]]
            case "item":
                words[step.target] = int(inputs[step.args[0]].reshape(-1)[step.args[1]])
            case "const":
                words[step.target] = step.args[0]
            case verb:
                words[step.target] = int(VERBS[verb](*(words[a] for a in step.args)))
    return words


def agreed(graph: Graph, scalars: Sequence[int] = (), inputs: Sequence[np.ndarray] = ()) -> list[int]:
    """The words, which both ways must give."""
    symbols = Symbols(graph)
    given: dict[Value, Shape | int] = {}
    given |= dict(zip((v for v in graph.inputs if isinstance(v, Sym)), scalars, strict=True))
    arrays = dict(zip((v for v in graph.inputs if isinstance(v, Tensor)), inputs, strict=True))
    given |= {t: x.shape for t, x in arrays.items()}
    Live(graph).update(given, lambda t: arrays[t] if t.data is None else t.data)
    steps = symbols.steps()
    words = interpret(steps, scalars, inputs)
    assert symbols.words() == [words[k] for k in range(len(words))]
    assert steps == symbols.steps()
    return symbols.words()


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


def test_literals_get_words_of_their_own_behind_the_symbolic_ints() -> None:
    s = Sketch()
    x = s.sym()
    more = s.node("add", x, 3)
    twice = s.node("mul", more, 2.0)
    again = s.node("sub", twice, 3)
    assert [5, 8, 16, 13, 3, 2] == agreed(s.returns(again), [5])


def test_sizes_are_constants_of_a_plan() -> None:
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
    assert (SymStep(0, "const", (5,)),) == Symbols(graph).steps()


def test_results_are_words() -> None:
    s = Sketch()
    x, y = s.sym(), s.sym()
    total = s.node("add", x, y)
    assert (2, 1) == Symbols(s.returns(total, y)).outputs()


def test_a_graph_without_symbolic_ints_has_no_words() -> None:
    s = Sketch()
    symbols = Symbols(s.returns(s.tensor("aten.relu.default", s.input(4))))
    assert ((), [], ()) == (symbols.steps(), symbols.words(), symbols.outputs())


def test_more_words_than_the_buffer_holds_are_refused() -> None:
    symbols = Symbols(Graph("g"))
    for value in range(CAPACITY):
        symbols.word(value)
    with pytest.raises(UnsupportedProgram) as error:
        symbols.word(CAPACITY)
    assert "graph g has more than 256 symbolic ints" == str(error.value)
    assert 7 == symbols.word(7)
