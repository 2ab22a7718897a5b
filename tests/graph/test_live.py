"""The shape engine: what reruns, how often, and that a refused update leaves no trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from tests.graphs import Sketch, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, InvalidInput, ShapeError
from ptegpu.graph import live
from ptegpu.graph.graph import Arg, Graph, Node, Shape, Tensor, Value
from ptegpu.graph.live import Live, evaluate, settle
from ptegpu.ops.registry import REGISTRY, OpDef, Out, Parameter

HUGE = 2**62


def nothing(tensor: Tensor) -> np.ndarray:
    raise AssertionError(f"{tensor!r} is read")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each node's rule ran, by the node's name."""
    counted: Counter[str] = Counter()
    original = live.evaluate

    def evaluate(node: Node, data: live.Data) -> object:
        counted[node.name] += 1
        return original(node, data)

    monkeypatch.setattr(live, "evaluate", evaluate)
    yield counted


def diamond() -> tuple[Graph, list[Tensor], list[Tensor]]:
    """left = |x|, right = exp(x), y = left + right; z = √other by itself."""
    s = Sketch()
    x, other = s.input(8, 4), s.input(6)
    left, right = s.tensor("aten.abs.default", x), s.tensor("aten.exp.default", x)
    y, z = s.tensor("aten.add.Tensor", left, right), s.tensor("aten.sqrt.default", other)
    return s.returns(y, z), [x, other], [left, right, y, z]


def test_the_first_update_runs_every_rule_once(runs: Counter[str]) -> None:
    graph, (x, other), _ = diamond()
    assert not Live(graph).update({x: (8, 4), other: (6,)}, nothing)
    assert {n.name: 1 for n in graph.nodes} == runs


def test_only_what_is_downstream_of_a_change_reruns_and_only_once(runs: Counter[str]) -> None:
    graph, (x, other), (left, right, y, z) = diamond()
    engine = Live(graph)
    engine.update({x: (8, 4), other: (6,)}, nothing)
    runs.clear()
    assert engine.update({x: (3, 4), other: (6,)}, nothing)
    assert {"aten.abs.default #0": 1, "aten.exp.default #1": 1, "aten.add.Tensor #2": 1} == runs
    assert [(3, 4), (3, 4), (3, 4), (6,)] == [t.shape for t in (left, right, y, z)]


def test_the_same_shapes_again_run_nothing(runs: Counter[str]) -> None:
    graph, (x, other), _ = diamond()
    engine = Live(graph)
    engine.update({x: (2, 4), other: (5,)}, nothing)
    runs.clear()
    assert not engine.update({x: (2, 4), other: (5,)}, nothing)
    assert {} == runs


def test_a_rule_whose_result_stays_ends_the_wave(runs: Counter[str]) -> None:
    s = Sketch()
    x = s.input(8, 4)
    size = s.node("sym_size.int", x, 1)
    doubled = s.node("mul", size, 2)
    engine = Live(s.returns(doubled))
    engine.update({x: (8, 4)}, nothing)
    runs.clear()
    assert engine.update({x: (5, 4)}, nothing)
    assert {"sym_size.int #0": 1} == runs


def test_symbolic_ints_have_values_after_a_first_call_at_the_maximum() -> None:
    s = Sketch()
    x = s.input(8, 4)
    size = s.node("sym_size.int", x, 0)
    tripled = s.node("mul", size, 3)
    Live(s.returns(tripled)).update({x: (8, 4)}, nothing)
    assert (8, 24) == (int(size), int(tripled))


def test_a_symbolic_int_reshapes_what_is_viewed_by_it() -> None:
    s = Sketch()
    x = s.input(8, 4)
    rows = s.sym(8)
    y = s.tensor("aten.view_copy.default", x, (rows, 2, 2))
    engine = Live(s.returns(y))
    assert engine.update({x: (3, 4), rows: 3}, nothing)
    assert (3, 2, 2) == y.shape


def test_a_node_that_reads_data_runs_on_every_update(runs: Counter[str]) -> None:
    s = Sketch()
    position = s.input(1, dtype=DType.I32)
    item = s.node("et_vk.select_as_symint.default", position, 0, 0)
    following = s.node("add", item, 1)
    engine = Live(s.returns(following))
    for value, expected in ((5, 2), (5, 1), (9, 2)):
        runs.clear()
        assert not engine.update({position: (1,)}, lambda _, v=value: np.array([v]))
        assert (value, value + 1) == (int(item), int(following))
        assert expected == sum(runs.values())


def test_a_dimension_of_zero_is_a_shape() -> None:
    graph, (x, other), (_, _, y, _) = diamond()
    Live(graph).update({x: (0, 4), other: (6,)}, nothing)
    assert (0, 4) == y.shape


def refused(engine: Live, changes: dict[Value, Shape | int], error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        engine.update(changes, nothing)
    return str(caught.value)


def test_a_result_above_its_maximum_is_refused_and_nothing_changes() -> None:
    s = Sketch()
    x, y = s.input(4, 3), s.input(4, 3)
    joined = s.tensor("aten.cat.default", (x, y))
    last = s.tensor("aten.relu.default", joined)
    joined.max_shape = joined.shape = (6, 3)
    engine = Live(s.returns(last))
    engine.update({x: (2, 3), y: (3, 3)}, nothing)
    before = [t.shape for t in s.graph.tensors()]
    expected = "aten.cat.default #0: its result t3 would be [7, 3], but the program allows at most [6, 3]"
    assert expected == refused(engine, {x: (4, 3), y: (3, 3)}, ShapeError)
    assert before == [t.shape for t in s.graph.tensors()]
    assert engine.update({x: (1, 3), y: (3, 3)}, nothing)
    assert (4, 3) == last.shape


def test_division_by_zero_is_named_and_restores_symbolic_ints() -> None:
    s = Sketch()
    a, b = s.sym(), s.sym()
    total = s.node("add", a, b)
    quotient = s.node("floordiv", total, b)
    engine = Live(s.returns(quotient))
    engine.update({a: 6, b: 3}, nothing)
    assert "floordiv #1: division by zero" == refused(engine, {a: 6, b: 0}, ExecutionError)
    assert [6, 3, 9, 3] == [int(v) for v in (a, b, total, quotient)]


def test_a_symbolic_int_beyond_32_bits_is_refused() -> None:
    s = Sketch()
    a = s.sym()
    product = s.node("mul", a, 65536)
    engine = Live(s.returns(product))
    expected = "mul #0: the symbolic int 2147483648 does not fit int32"
    assert expected == refused(engine, {a: 32768}, ExecutionError)
    assert [0, 0] == [int(a), int(product)]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 10**30])
def test_an_int_of_a_call_beyond_32_bits_is_refused(value: int) -> None:
    s = Sketch()
    a = s.sym()
    engine = Live(s.returns(s.node("neg", a)))
    expected = f"s1: the int {value} does not fit int32, which is what the GPU computes with"
    assert expected == refused(engine, {a: value}, InvalidInput)
    assert 0 == int(a)


NONSENSE: list[tuple[str, tuple[Arg, ...], str]] = [
    (
        "aten.upsample_nearest2d.vec",
        (None, (math.inf, 2.0)),
        "(x:float32[1, 1, 2, 2], None, (inf, 2.0)): cannot convert float infinity to integer",
    ),
    (
        "aten.upsample_nearest2d.vec",
        (None, (math.nan, 2.0)),
        "(x:float32[1, 1, 2, 2], None, (nan, 2.0)): cannot convert float NaN to integer",
    ),
    (
        "quantized_decomposed.quantize_per_tensor.default",
        (0.0, 3, -128, 127, None),
        "(x:float32[1, 1, 2, 2], 0.0, 3, -128, 127, None): float division by zero",
    ),
    (
        "aten.round.decimals",
        (HUGE,),
        f"(x:float32[1, 1, 2, 2], {HUGE}): (34, 'Numerical result out of range')",
    ),
]


@pytest.mark.parametrize(("op", "args", "reason"), NONSENSE, ids=[f"{op}{args}" for op, args, _ in NONSENSE])
def test_numbers_that_a_rule_cannot_compute_with_are_shown(op: str, args: tuple[Arg, ...], reason: str) -> None:
    x = Tensor("x", DType.F32, (1, 1, 2, 2), "input")
    dtype = DType.I8 if "quantize" in op else DType.F32
    out = Tensor("y", dtype, (1, 1, 2, 2))
    graph = Graph("g", [x], [out], [Node(REGISTRY[op], (x, *args), (out,), f"{op} #4")])
    with pytest.raises(ShapeError) as error:
        settle(graph)
        plan_of(graph)
    assert f"{op} #4: cannot compute with {reason}" == str(error.value)


def test_a_long_list_is_cut_in_the_message() -> None:
    def divides(sizes: Arg) -> Iterator[Out]:
        yield Out((1 // 0,))

    op = OpDef("test.divides", (Parameter("sizes"),), frozenset(), steps=divides)
    with pytest.raises(ShapeError) as error:
        evaluate(Node(op, ((1,) * 300,), (Tensor("y", DType.F32, (2,)),), "it"), nothing)
    assert f"it: cannot compute with ({'(' + '1, ' * 66}1 …): integer division or modulo by zero" == str(error.value)


def test_shapes_that_do_not_fit_each_other_name_the_node() -> None:
    s = Sketch()
    x, y = s.input(4), s.input(4)
    engine = Live(s.returns(s.tensor("aten.mul.Tensor", x, y)))
    expected = "aten.mul.Tensor #0: shapes [2], [3] do not broadcast"
    assert expected == refused(engine, {x: (2,), y: (3,)}, ShapeError)
    assert [(4,), (4,)] == [x.shape, y.shape]


def test_an_update_refused_before_the_first_has_settled_runs_everything_again(runs: Counter[str]) -> None:
    s = Sketch()
    x = s.input(4)
    rows = s.node("sym_size.int", x, 0)
    b = s.sym()
    quotient = s.node("floordiv", rows, b)
    engine = Live(s.returns(quotient))
    refused(engine, {x: (4,), b: 0}, ExecutionError)
    runs.clear()
    engine.update({x: (4,), b: 2}, nothing)
    assert 2 == sum(runs.values())
    assert (4, 2) == (int(rows), int(quotient))


def test_settle_says_what_a_static_graph_gets_wrong() -> None:
    s = Sketch()
    y = s.tensor("aten.relu.default", s.input(4, 3))
    y.max_shape = y.shape = (4, 2)
    with pytest.raises(ShapeError) as error:
        settle(s.returns(y))
    expected = "aten.relu.default #0: its result t2 would be [4, 3], but the program allows at most [4, 2]"
    assert expected == str(error.value)


def test_the_number_of_results_must_be_the_declared_one() -> None:
    s = Sketch()
    y = s.tensor("aten.alias_copy.default", s.input(4))
    s.graph.nodes[0].outs = (y, Tensor("extra", y.dtype, (4,)))
    with pytest.raises(ShapeError) as error:
        settle(s.returns(y))
    assert "aten.alias_copy.default #0 has 1 results, the program says 2" == str(error.value)
