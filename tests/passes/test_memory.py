"""Assignment of tensors to buffers: reuse by liveness, aliases for views, and no overwritten value in any graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.graphs import OVERWRITE, Sketch

from ptegpu.dtypes import DType
from ptegpu.errors import LimitExceeded
from ptegpu.graph.graph import Graph, Tensor, flatten
from ptegpu.passes.memory import ConstantKey, Memory, aliases, plan_memory
from ptegpu.plan.target import Target

VIEW = "aten.alias_copy.default"


def planned(graph: Graph) -> Memory:
    return plan_memory(graph, Target())


def names(memory: Memory, *tensors: Tensor) -> list[str]:
    return [memory.buffer_of[t].name for t in tensors]


def chain(s: Sketch, x: Tensor, length: int) -> list[Tensor]:
    tensors = []
    for _ in range(length):
        x = s.tensor("aten.relu.default", x)
        tensors.append(x)
    return tensors


def test_a_chain_takes_two_temporaries_in_turn() -> None:
    s = Sketch()
    tensors = chain(s, s.input(8), 5)
    assert ["temp0", "temp1", "temp0", "temp1", "temp0"] == names(planned(s.returns(tensors[-1])), *tensors)


def test_a_buffer_is_reused_only_after_the_node_of_its_last_use() -> None:
    s = Sketch()
    first, second = chain(s, s.input(8), 2)
    third = s.tensor("aten.add.Tensor", first, second)
    assert 3 == len(set(names(planned(s.returns(third)), first, second, third)))


def test_inputs_are_never_reused() -> None:
    s = Sketch()
    x = s.input(8)
    tensors = chain(s, x, 4)
    memory = planned(s.returns(tensors[-1]))
    assert memory.buffer_of[x].role == "input"
    assert memory.buffer_of[x] not in [memory.buffer_of[t] for t in tensors]


def test_outputs_are_never_reused() -> None:
    s = Sketch()
    tensors = chain(s, s.input(8), 6)
    memory = planned(s.returns(tensors[0], tensors[2]))
    outputs = names(memory, tensors[0], tensors[2])
    assert not set(outputs) & set(names(memory, tensors[1], *tensors[3:]))


def test_new_values_of_states_are_never_reused() -> None:
    s = Sketch()
    old = s.state(8)
    new = s.tensor("aten.exp.default", old)
    later = chain(s, s.input(8), 3)
    s.graph.writebacks.append((old, new))
    memory = planned(s.returns(later[-1]))
    assert memory.buffer_of[new].name not in names(memory, old, *later)


def test_large_tensors_come_first_and_small_ones_fit_into_what_is_idle() -> None:
    s = Sketch()
    small = s.tensor("aten.amax.default", s.tensor("aten.relu.default", s.input(4, 8)), (1,))
    large = s.tensor("aten.expand_copy.default", s.tensor("aten.view_copy.default", small, (4, 1)), (4, 64))
    last = s.tensor("aten.amax.default", large, (1,))
    memory = planned(s.returns(last))
    assert [1024, 16] == [b.nbytes for b in memory.buffers if b.role == "temp"]
    assert names(memory, small) == names(memory, last)


def test_results_that_nobody_reads_have_a_place_all_the_same() -> None:
    s = Sketch()
    y = s.tensor("aten.native_layer_norm.default", s.input(2, 4), (4,), None, None, 1e-5, dtype=[DType.F32] * 3)
    memory = planned(s.returns(y))
    outs = [o for o in s.graph.nodes[0].outs if isinstance(o, Tensor)]
    assert 3 == len(set(names(memory, *outs)))


@pytest.mark.parametrize("nbytes, expected", [(0, 16), (1, 16), (16, 16), (17, 32)])
def test_sizes_are_padded(nbytes: int, expected: int) -> None:
    s = Sketch()
    x = s.input(nbytes, dtype=DType.U8)
    assert expected == planned(s.returns(x)).buffer_of[x].nbytes


def test_views_share_the_buffer_of_their_source() -> None:
    s = Sketch()
    x = s.input(2, 6)
    a = s.tensor("aten.exp.default", x)
    b = s.tensor("aten.view_copy.default", a, (3, 4))
    c = s.tensor("aten.unsqueeze_copy.default", b, 0)
    of_input = s.tensor("aten.clone.default", x)
    graph = s.returns(c, of_input)
    assert {b: a, c: a, of_input: x} == aliases(graph)
    memory = planned(graph)
    assert memory.buffer_of[a] is memory.buffer_of[b] is memory.buffer_of[c]
    assert memory.buffer_of[x] is memory.buffer_of[of_input]


def test_a_view_keeps_its_source_alive() -> None:
    s = Sketch()
    a = s.tensor("aten.exp.default", s.input(8))
    view = s.tensor("aten.view_copy.default", a, (2, 4))
    between = chain(s, s.input(8), 2)
    y = s.tensor("aten.relu.default", view)
    memory = planned(s.returns(y, between[-1]))
    assert memory.buffer_of[a].name not in names(memory, *between)


def test_a_view_into_another_dtype_is_no_alias() -> None:
    s = Sketch()
    y = s.tensor("aten._to_copy.default", s.input(4), dtype=DType.I32)
    assert {} == aliases(s.returns(y))


def test_a_view_of_a_state_that_is_written_later_is_a_copy() -> None:
    s = Sketch()
    state = s.state(4)
    before = s.tensor(VIEW, state)
    s.node(OVERWRITE, state, s.input(4))
    after = s.tensor(VIEW, state)
    y = s.tensor("aten.add.Tensor", before, after)
    assert {after: state} == aliases(s.returns(y))


def test_a_view_of_a_state_that_gets_a_new_value_is_a_copy() -> None:
    s = Sketch()
    state = s.state(4)
    view = s.tensor(VIEW, state)
    s.graph.writebacks.append((state, s.tensor("aten.exp.default", state)))
    assert {} == aliases(s.returns(view))


def test_a_state_that_is_an_output_is_copied() -> None:
    """The next run may write the state while the caller still has the output."""
    s = Sketch()
    output = s.tensor(VIEW, s.state(4))
    assert {} == aliases(s.returns(output))


def test_a_view_that_is_written_is_a_copy() -> None:
    s = Sketch()
    x = s.tensor("aten.exp.default", s.input(4))
    view = s.tensor(VIEW, x)
    s.node(OVERWRITE, view, s.input(4))
    assert {} == aliases(s.returns(view, x))


def test_constants_on_the_same_bytes_share_a_buffer() -> None:
    bytes_ = np.arange(4, dtype=np.float32)
    s = Sketch()
    a, b, other = s.constant(bytes_), s.constant(bytes_.reshape(2, 2)), s.constant(bytes_.copy())
    memory = planned(s.returns(a, b, other))
    assert memory.buffer_of[a] is memory.buffer_of[b]
    assert memory.buffer_of[a] is not memory.buffer_of[other]
    assert 2 == len(memory.blobs)


def test_the_same_bytes_as_another_dtype_or_length_are_another_constant() -> None:
    bytes_ = np.arange(4, dtype=np.float32)
    s = Sketch()
    constants = [s.constant(x) for x in (bytes_, bytes_.view(np.int32), bytes_[:2])]
    assert 3 == len(set(names(planned(s.returns(*constants)), *constants)))


def test_graphs_of_one_program_name_shared_constants_alike() -> None:
    bytes_ = np.arange(4, dtype=np.float32)
    constant_names: dict[ConstantKey, str] = {}
    buffer_names = []
    for extra in (1, 2):
        s = Sketch()
        own, shared = s.constant(np.zeros(extra, np.float32)), s.constant(bytes_)
        buffer_names.append(names(plan_memory(s.returns(own, shared), Target(), constant_names), own, shared))
    assert [["constant0", "constant1"], ["constant2", "constant1"]] == buffer_names


def test_states_never_share_a_buffer() -> None:
    bytes_ = np.zeros(4, np.float32)
    s = Sketch()
    states = [s.state(4, data=bytes_), s.state(4, data=bytes_), s.state(4)]
    constant = s.constant(bytes_)
    memory = planned(s.returns(*states, constant))
    assert 4 == len(set(names(memory, *states, constant)))
    assert [None, None, None, 0] == [memory.buffer_of[t].blob for t in (*states, constant)]


def test_first_values_of_states_are_kept_unless_they_are_zeros() -> None:
    s = Sketch()
    zeros, ones = s.state(4, data=np.zeros(4, np.float32)), s.state(4, data=np.ones(4, np.float32))
    memory = planned(s.returns(zeros, ones))
    assert [None, 0] == [memory.buffer_of[t].blob for t in (zeros, ones)]
    assert [bytes(np.ones(4, np.float32))] == [bytes(blob) for blob in memory.blobs]


@pytest.mark.parametrize("kind", ["input", "temp", "state"])
def test_a_tensor_above_the_binding_limit_is_named(kind: str) -> None:
    s = Sketch()
    x = s.state(5, 4) if kind == "state" else s.input(5, 4) if kind == "input" else s.input(5, 1)
    y = s.tensor("aten.expand_copy.default", x, (5, 4))
    with pytest.raises(LimitExceeded) as error:
        plan_memory(s.returns(y), Target(name="a small GPU", max_binding_bytes=64))
    named = {"input": "x1", "temp": "t2", "state": "state1"}[kind]
    expected = (
        f"{named}, float32[5, 4], takes 80 bytes, and a small GPU binds at most 64; "
        "name the sizes that you need with sizes=, export with smaller bounds, or choose another device"
    )
    assert expected == str(error.value)


def test_scratch_is_the_smallest_temporary_that_fits_and_is_idle() -> None:
    s = Sketch()
    x = s.input(4, 8)
    total = s.tensor("aten.add.Tensor", s.tensor("aten.relu.default", x), s.tensor("aten.exp.default", x))
    y = s.tensor("aten.amax.default", total, (1,))
    memory = planned(s.returns(y))
    idle = memory.scratch(3, 64, set())
    assert idle is not None
    assert [(1, 2)] == memory.busy[idle.name]
    assert memory.scratch(3, 64, {idle.name}) is None
    assert memory.scratch(3, 129, set()) is None
    assert memory.scratch(2, 16, set()) is None


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw unary and binary nodes, concatenations, slices, views and in-place writes of random earlier values."""
    s = Sketch()
    values = [s.input(4), s.input(6), s.constant(np.ones(4, np.float32)), s.state(4), s.state(4)]
    states = values[-2:]
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["unary", "binary", "half", "view", "overwrite"]))
        x = draw(st.sampled_from(values))
        alike = [v for v in values if v.shape == x.shape]
        if kind == "unary":
            values.append(s.tensor("aten.relu.default", x))
        elif kind == "half":
            values.append(s.tensor("aten.slice_copy.Tensor", x, 0, 0, max(1, x.shape[0] // 2)))
        elif kind == "view":
            values.append(s.tensor(VIEW, x))
        elif kind == "binary":
            y = draw(st.sampled_from(values))
            same = x.shape == y.shape
            values.append(s.tensor("aten.add.Tensor", x, y) if same else s.tensor("aten.cat.default", (x, y)))
        elif x.kind not in ("input", "constant"):  # `build` copies those before a write
            others = [v for v in alike if v is not x]
            if others:
                s.node(OVERWRITE, x, draw(st.sampled_from(others)))
    temporaries = [v for v in values if v.kind == "temp"]
    for state in states:
        fitting = [v for v in temporaries if v.shape == state.shape]
        if fitting and draw(st.booleans()):
            s.graph.writebacks.append((state, draw(st.sampled_from(fitting))))
    return s.returns(*(draw(st.lists(st.sampled_from(temporaries), max_size=3)) if temporaries else ()))


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_every_read_finds_the_value_it_should(graph: Graph) -> None:
    """Simulate the graph on names of values, with a place per tensor and with the planned buffers, and compare."""
    memory = planned(graph)
    by_itself: dict[Tensor, str] = {}
    in_buffer: dict[str, str] = {}

    def place(t: Tensor, value: str) -> None:
        by_itself[t] = in_buffer[memory.buffer_of[t].name] = value

    def check(t: Tensor, where: str) -> None:
        assert by_itself[t] == in_buffer[memory.buffer_of[t].name], f"{t!r} is overwritten before {where}"

    fixed = [t for t in graph.tensors() if t.kind != "temp"]
    for t in fixed:
        place(t, t.name)
    for node in graph.nodes:
        args = [v for v in node.values() if isinstance(v, Tensor)]
        outs = [o for o in node.outs if isinstance(o, Tensor)]
        for t in args:
            check(t, node.name)
        aliased = node.op.view is not None and memory.buffer_of[outs[0]] is memory.buffer_of[args[0]]
        if aliased:
            by_itself[outs[0]] = by_itself[args[0]]
            continue
        reads = {memory.buffer_of[t].name for t in args if t not in node.mutates}
        writes = [memory.buffer_of[t].name for t in (*outs, *node.mutates)]
        assert len(writes) == len(set(writes)) and not reads & set(writes), node.name
        value = by_itself[args[0]] if node.op.view is not None else f"{node.name} of {[by_itself[t] for t in args]}"
        for t in (*outs, *node.mutates):
            place(t, value)
    for state, value in graph.writebacks:
        check(value, "it is copied")
        in_buffer[memory.buffer_of[state].name] = by_itself[value]
    for t in flatten(tuple(graph.outputs)):
        assert isinstance(t, Tensor)
        check(t, "it is read")
    for t in fixed:
        if t.kind != "state":
            check(t, "the next run")
