"""Plans for all sizes: how many families and choices they have, what is refused, what is traced when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.cases import sizes_of
from tests.families import hold, points
from tests.graphs import Sketch

from ptegpu.compiler import size_grid as sampling
from ptegpu.compiler import tracer as module
from ptegpu.compiler.planner import Planner, planned
from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, InvalidProgram, LimitExceeded, PtegpuError, ShapeError
from ptegpu.graph.graph import Graph, Node, Sym, Tensor
from ptegpu.graph.shape_rules import Item
from ptegpu.plan.plan import Plan
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import Target


def unread(position: int, element: int) -> int:
    raise AssertionError(f"element {element} of input {position} is read")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the runs of each node's shape rule, by the node's name."""
    counted: Counter[str] = Counter()
    original = module.evaluate

    def evaluate(node: Node, item: Item) -> object:
        counted[node.name] += 1
        return original(node, item)

    monkeypatch.setattr(module, "evaluate", evaluate)
    yield counted


def dynamic(graph: Graph, **options: Any) -> Planner:
    return Planner(graph, Target(), [True] * len(graph.inputs), **options)


def shapes_of(plan: Plan, *sizes: Any) -> list[Any]:
    """The shapes of the outputs, and the ints among them, for inputs of these shapes (ints: these values)."""
    outputs = plan_at(plan, sizes, unread).families[0].outputs
    return [o if isinstance(o, int) else o.shape for o in outputs]


def diamond() -> tuple[Graph, list[Tensor], list[Tensor]]:
    """left = |x|, right = exp(x), y = left + right; z = √other by itself."""
    s = Sketch()
    x, other = s.input(8, 4), s.input(6)
    left, right = s.tensor("aten.abs.default", x), s.tensor("aten.exp.default", x)
    y, z = s.tensor("aten.add.Tensor", left, right), s.tensor("aten.sqrt.default", other)
    return s.returns(y, z), [x, other], [left, right, y, z]


def test_rules_that_only_compute_with_sizes_run_once_for_all(runs: Counter[str]) -> None:
    graph, _, _ = diamond()
    planner = dynamic(graph).cover()
    assert {n.name: 1 for n in graph.nodes} == runs
    assert 1 == len(planner.families)
    plan = planner.plan()
    for x, other in (((8, 4), (6,)), ((3, 4), (6,)), ((1, 1), (0,)), ((0, 4), (2,))):
        assert [x, other] == shapes_of(plan, x, other)


def test_what_the_plan_covers_traces_nothing_more(runs: Counter[str]) -> None:
    planner = dynamic(diamond()[0]).cover()
    plan, traced = planner.plan(), planner.tracer.lowered
    runs.clear()
    planner.extend([(5, 4), (2,)], unread)
    assert ({}, traced, plan) == (runs, planner.tracer.lowered, planner.plan())


def test_a_size_that_must_be_one_thing_is_a_guard() -> None:
    s = Sketch()
    x = s.input(8, 4)
    plan = dynamic(s.returns(s.tensor("aten.mm.default", x, s.constant(np.ones((4, 3), np.float32))))).cover().plan()
    assert [(5, 3)] == shapes_of(plan, (5, 4))
    at = plan.families[0].guards
    assert any(plan.rows[g][0] == "eq" for g in at)
    with pytest.raises(LookupError):
        shapes_of(plan, (5, 3))


def test_symbolic_ints_follow_sizes() -> None:
    s = Sketch()
    x = s.input(8, 4)
    size = s.node("sym_size.int", x, 0)
    tripled = s.node("mul", size, 3)
    plan = dynamic(s.returns(size, tripled)).cover().plan()
    for n in (8, 5, 0):
        assert [n, 3 * n] == shapes_of(plan, (n, 4))


def test_a_symbolic_int_reshapes_what_is_viewed_by_it() -> None:
    s = Sketch()
    x, rows = s.input(8, 4), s.sym(8)
    planner = dynamic(s.returns(s.tensor("aten.view_copy.default", x, (rows, 2, 2))), sizes={"s2": range(9)}).cover()
    plan = planner.plan()
    for n in (3, 8, 1):
        assert [(n, 2, 2)] == shapes_of(plan, (n, 4), n)
    with pytest.raises(ShapeError):
        planner.extend([(3, 4), 4], unread)


def test_an_int_that_is_read_from_data_makes_one_plan() -> None:
    s = Sketch()
    position = s.input(1, dtype=DType.I32)
    item = s.node("et_vk.select_as_symint.default", position, 0, 0)
    following = s.node("add", item, 1)
    planner = dynamic(s.returns(item, following)).cover()
    plan = planner.plan()
    for value in (5, 5, -9):
        inputs = [np.array([value], np.int32)]
        assert (value, value + 1) == plan_at(plan, *sizes_of(inputs)).families[0].outputs
        planner.extend(*sizes_of(inputs))
    assert planner.plan() == plan


def joining() -> Graph:
    s = Sketch()
    x, y = s.input(4, 3), s.input(4, 3)
    joined = s.tensor("aten.cat.default", (x, y))
    last = s.tensor("aten.relu.default", joined)
    joined.max_shape = joined.shape = (6, 3)
    return s.returns(last)


def refused(planner: Planner, sizes: Sequence[Any], error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        planner.extend(sizes, unread)
    return str(caught.value)


def test_a_result_above_its_maximum_is_refused_with_the_sizes_of_the_call() -> None:
    graph = joining()
    planner = dynamic(graph).cover()
    plan = planner.plan()
    text = "aten.cat.default #0: its result t3 would be [{}, 3], but the program allows at most [6, 3]"
    for x, y in ((4, 3), (4, 4), (3, 4)):
        assert text.format(x + y) == refused(planner, [(x, 3), (y, 3)], ShapeError)
        assert [(4, 3)] == shapes_of(planner.plan(), (1, 3), (3, 3))
    assert len(plan.families) == len(planner.plan().families)
    assert any(family.refusal for family in plan.families)


def test_shapes_that_do_not_fit_each_other_name_the_node() -> None:
    s = Sketch()
    x, y = s.input(4), s.input(4)
    planner = dynamic(s.returns(s.tensor("aten.mul.Tensor", x, y))).cover()
    for a, b in ((2, 3), (3, 2), (4, 3)):
        expected = f"aten.mul.Tensor #0: shapes [{a}], [{b}] do not broadcast"
        assert expected == refused(planner, [(a,), (b,)], ShapeError)
    for a, b in ((2, 2), (1, 3), (3, 1), (4, 4)):
        planner.extend([(a,), (b,)], unread)  # sizes that are equal at first are looked at together
        assert [(max(a, b),)] == shapes_of(planner.plan(), (a,), (b,))


def test_division_by_zero_is_named_and_other_values_still_run() -> None:
    s = Sketch()
    a, b = s.sym(), s.sym()
    total = s.node("add", a, b)
    planner = dynamic(s.returns(total, s.node("floordiv", total, b)), sizes={"s2": range(4)}).cover()
    assert "floordiv #1: division by zero" == refused(planner, [6, 0], ExecutionError)
    assert [9, 3] == shapes_of(planner.plan(), 6, 3)
    assert [-1, -1] == shapes_of(planner.plan(), -2, 1)


def test_a_symbolic_int_beyond_32_bits_is_refused() -> None:
    s = Sketch()
    planner = dynamic(s.returns(s.node("mul", s.sym(), 65536))).cover()
    for value in (32768, 2**20):
        expected = f"mul #0: the symbolic int {value * 65536} does not fit int32"
        assert expected == refused(planner, [value], ExecutionError)
    assert [2**31 - 65536] == shapes_of(planner.plan(), 32767)


def products() -> Graph:
    """Return a graph of products with special kernels for few rows, before nodes that are the same at any size."""
    s = Sketch()
    x = s.tensor("aten.relu.default", s.input(40, 64))
    for _ in range(2):
        x = s.tensor("aten.mm.default", x, s.constant(np.ones((64, 64), np.float32)))
    return s.returns(x)


def test_choices_are_of_nodes_and_not_of_plans() -> None:
    planner = dynamic(products()).cover()
    (family,) = planner.plan().families[:1]
    relu, first, second = (len(choices) for choices in family.steps)
    assert relu < first == second < 40
    assert planner.grid.complete and 41 == hold(planner, dynamic(products(), plain=True), points(planner, 200))


def test_a_size_that_equals_an_expression_is_not_fixed() -> None:
    """An `arange` as long as a dimension says that the two are equal: all values are looked at nevertheless."""

    def graph() -> Graph:
        s = Sketch()
        x = s.input(3, 12)
        length = s.node("sym_size.int", x, 1)
        assert isinstance(length, Sym)
        length.value = 12
        count = s.tensor("aten.arange.start_step", 0, length, 1, dtype=DType.F32)
        return s.returns(s.tensor("aten.permute_copy.default", s.tensor("aten.add.Tensor", x, count), (1, 0)))

    planner = dynamic(graph()).cover()
    assert 3 * 12 <= hold(planner, dynamic(graph(), plain=True), points(planner, 200))
    assert [(9, 2)] == shapes_of(planner.plan(), (2, 9))


def test_sizes_that_nobody_planned_for_are_traced_when_they_are_asked_for() -> None:
    planner = dynamic(products(), sizes={"x1[0]": [40]}).cover()
    plan, traces = planner.plan(), planner.tracer.lowered
    with pytest.raises(LookupError):
        plan_at(plan, [(1, 64)], unread)
    planner.extend([(1, 64)], unread)
    more = planner.plan()
    assert planner.tracer.lowered > traces
    assert [(1, 64)] == shapes_of(more, (1, 64))
    assert plan_at(more, [(40, 64)], unread).dispatches == plan_at(plan, [(40, 64)], unread).dispatches
    assert plan.buffers == more.buffers[: len(plan.buffers)]  # what is on a device already keeps its place and size
    assert plan.kernels == more.kernels[: len(plan.kernels)]
    assert plan.rows == more.rows[: len(plan.rows)]
    assert plan.params == more.params[: len(plan.params)]


def test_more_sizes_than_are_looked_at_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_POINTS", 64)
    s = Sketch()
    x, y = s.input(50), s.input(60)
    planner = dynamic(s.returns(s.tensor("aten.abs.default", x), s.tensor("aten.exp.default", y))).cover()
    assert not planner.grid.complete
    looked = list(points(planner, 200))
    assert 4 <= len(looked) <= 4 * 64
    assert (50, 60) in {tuple(p.values()) for p in looked}
    assert [(17,), (33,)] == shapes_of(planner.plan(), (17,), (33,))


def test_a_graph_of_fixed_shapes_that_is_wrong_raises_at_once() -> None:
    graph = joining()
    with pytest.raises(ShapeError) as error:
        planned(graph, Target())
    assert str(error.value).startswith("aten.cat.default #0: its result t3 would be [8, 3]")
    s = Sketch()
    y = s.tensor("aten.relu.default", s.input(4, 3))
    y.max_shape = y.shape = (5, 3)
    with pytest.raises(InvalidProgram) as wrong:
        planned(s.returns(y), Target())
    message = "aten.relu.default #0 gives [4, 3], the program says [5, 3]: it contradicts itself, so export it again"
    assert message == str(wrong.value)


@pytest.mark.parametrize("rows", [(5, 7), (3, 5, 7)])
def test_a_dynamic_graph_that_is_wrong_at_every_size_raises_at_once(rows: tuple[int, ...]) -> None:
    """Test both a single comparison and a search over all sizes."""
    s = Sketch()
    x = s.input(8, 4)
    y = s.tensor("aten.relu.default", x)
    for n in rows:
        y = s.tensor("aten.add.Tensor", y, s.constant(np.ones((8, 4), np.float32)), 1)
        constant = s.graph.nodes[-1].args[1]
        assert isinstance(constant, Tensor)
        constant.data, constant.max_shape, constant.shape = np.ones((n, 4), np.float32), (n, 4), (n, 4)
    with pytest.raises(ShapeError) as error:
        dynamic(s.returns(y)).cover()
    assert f"aten.add.Tensor #1: shapes [8, 4], [{rows[0]}, 4] do not broadcast" == str(error.value)


def sliced_by_data(width: int = 4) -> Graph:
    """x[:at[0]] of a static x (8, 4), declared as (8, width)."""
    s = Sketch()
    x, at = s.input(8, 4), s.input(1, dtype=DType.I32)
    end = s.node("et_vk.select_as_symint.default", at, 0, 0)
    assert isinstance(end, Sym)
    end.value = 8
    y = s.tensor("aten.slice_copy.Tensor", x, 0, 0, end, 1)
    y.max_shape = y.shape = (8, width)
    return s.returns(y)


def test_shapes_of_a_static_graph_may_come_from_data() -> None:
    plan = Planner(sliced_by_data(), Target(), ahead=True).cover().plan()
    for end in range(-9, 10):
        inputs = [np.zeros((8, 4), np.float32), np.array([end], np.int32)]
        (out,) = plan_at(plan, *sizes_of(inputs)).outputs
        assert (len(range(8)[:end]), 4) == out.shape


def test_a_declared_shape_that_is_wrong_is_told_in_numbers() -> None:
    with pytest.raises(InvalidProgram) as wrong:
        Planner(sliced_by_data(width=5), Target()).cover()
    message = "aten.slice_copy.Tensor #1 gives [up to 8, 4], the program says [8, 5]"
    assert f"{message}: it contradicts itself, so export it again" == str(wrong.value)


def unbounded() -> Graph:
    """|xᵀ|; 16,384 is what the Vulkan lowering writes for a dimension without an upper bound."""
    s = Sketch()
    return s.returns(s.tensor("aten.abs.default", s.tensor("aten.permute_copy.default", s.input(16384, 16384), (1, 0))))


@pytest.mark.parametrize(
    "named",
    [
        {"sizes": {"x1[0]": range(1, 65), "x1[1]": [7, 33]}},
        {"points": [{"x1[0]": 64, "x1[1]": 3}, {"x1[0]": 2, "x1[1]": 33}]},
    ],
    ids=lambda named: next(iter(named)),
)
def test_memory_is_for_the_sizes_that_are_named_where_that_for_all_does_not_fit(named: dict[str, Any]) -> None:
    with pytest.raises(LimitExceeded, match=r"takes 1,073,741,824 bytes.*sizes="):
        dynamic(unbounded(), ahead=True)
    with pytest.raises(LimitExceeded):
        dynamic(unbounded(), sizes={"x1[0]": [16384]})
    planner = dynamic(unbounded(), **named).cover()
    plan = planner.plan()
    assert (64, 33) == plan.inputs[0].shape
    assert plan.device_bytes < 40_000
    for n in ((64, 33), (2, 33), (64, 7)):
        planner.extend([n], unread)
        assert [n[::-1]] == shapes_of(planner.plan(), n)


def test_memory_that_does_not_fit_for_all_sizes_starts_small_and_grows() -> None:
    planner = dynamic(unbounded()).cover()
    assert planner.plan().device_bytes <= 1 << 25
    for shape, room in (
        ((5, 3000), (1024, 4096)),  # to a power of two
        ((16384, 900), (16384, 1024)),  # (16384, 4096) would not fit
        ((3, 5), (16384, 1024)),
        ((5000, 6000), (5000, 6000)),  # nor would (8192, 8192)
    ):
        planner.extend([shape], unread)
        plan = planner.plan()
        assert room == plan.inputs[0].shape
        assert [shape[::-1]] == shapes_of(plan, shape)
    with pytest.raises(LimitExceeded, match=r"float32\[16384, 9000\], takes 589,824,000 bytes"):
        planner.extend([(16384, 9000)], unread)
    planner.extend([(4, 6000)], unread)
    assert (plan.inputs, [(6000, 4)]) == (planner.plan().inputs, shapes_of(planner.plan(), (4, 6000)))


def test_sizes_that_must_be_equal_shrink_together_and_those_that_are_fixed_stay() -> None:
    """x (65536, 64) @ w (64, 999) + y (65536, 1): the first size of x and y starts small, the others are fixed."""
    s = Sketch()
    x, y = s.input(1 << 16, 64), s.input(1 << 16, 1)
    total = s.tensor("aten.add.Tensor", s.tensor("aten.mm.default", x, s.constant(np.ones((64, 999), np.float32))), y)
    planner = dynamic(s.returns(total)).cover()
    assert [(1024, 64), (1024, 1)] == [i.shape for i in planner.plan().inputs]
    planner.extend([(5000, 64), (5000, 1)], unread)
    assert [(5000, 999)] == shapes_of(planner.plan(), (5000, 64), (5000, 1))


def test_what_a_kernel_refuses_at_some_sizes_runs_at_others() -> None:
    s = Sketch()
    y = s.tensor("aten._softmax.default", s.input(4, 9, dtype=DType.F16), -1, False)
    planner = Planner(s.returns(y), Target(max_binding_bytes=128), [True]).cover()
    expected = "aten._softmax.default #0: its scratch of 144 bytes is more than generic binds"
    assert expected == refused(planner, [(4, 9)], LimitExceeded)
    assert [(3, 9)] == shapes_of(planner.plan(), (3, 9))
    assert [(4, 8)] == shapes_of(planner.plan(), (4, 8))


def test_after_any_error_the_planner_serves_what_it_did() -> None:
    """Refused sizes in between do not change the plan of a size."""
    graph = joining()
    planner, rng = dynamic(graph).cover(), np.random.default_rng(0)
    first = planner.plan()
    for x, y in rng.integers(0, 5, (60, 2)).tolist():
        try:
            planner.extend([(x, 3), (y, 3)], unread)
        except PtegpuError:
            assert x + y > 6
            continue
        assert x + y <= 6
        assert [(x + y, 3)] == shapes_of(planner.plan(), (x, 3), (y, 3))
    assert first.families == planner.plan().families
