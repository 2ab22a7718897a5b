"""From nodes to dispatches: grids, parameter blocks, scratch, casts into packed types, words of symbolic ints."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.graphs import Sketch, plan_of

from ptegpu.compiler.plan_writer import PlanWriter
from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, LimitExceeded
from ptegpu.graph.graph import Arg, Graph, Node, Sym, Tensor
from ptegpu.kernels.wgsl import SYM_VECTORS, KernelSpec, Storage, build
from ptegpu.ops.registry import Dispatch as Launch
from ptegpu.ops.registry import OpDef, Out, Parameter, Steps
from ptegpu.passes.memory import Memory
from ptegpu.plan.plan import Copy, Expr, Input, Plan, PlannedDispatch, fold
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import Target

INF = float("inf")


@pytest.mark.parametrize(
    "groups, limit, expected",
    [
        (0, 10, (0, 1)),
        (10, 10, (10, 1)),
        (11, 10, (6, 2)),
        (99, 10, (10, 10)),
        (100, 10, (10, 10)),
        (65536, 65535, (32768, 2)),
    ],
)
def test_grids_fold_above_the_limit_of_a_dimension(groups: int, limit: int, expected: tuple[int, int]) -> None:
    assert expected == fold(groups, limit, "k")


@pytest.mark.parametrize("groups", range(1, 101))
def test_a_folded_grid_covers_all_groups_and_wastes_less_than_a_row(groups: int) -> None:
    x, y = fold(groups, 10, "k")
    assert x <= 10 and y <= 10
    assert groups <= x * y < groups + x + y


def test_a_grid_that_two_dimensions_cannot_hold() -> None:
    with pytest.raises(LimitExceeded) as error:
        fold(1_000_001, 1000, "copy")
    assert "kernel copy needs 1,000,001 workgroups, the device allows 1,000 × 1,000" == str(error.value)


def relu(*shape: int) -> Graph:
    s = Sketch()
    return s.returns(s.tensor("aten.relu.default", s.input(*shape)))


def test_a_dispatch_above_the_limit_is_folded_and_knows_its_groups() -> None:
    plan, _ = plan_of(relu(5, 1024), Target(max_groups=4))
    (dispatch,) = plan.dispatches
    assert (3, 2) == dispatch.grid
    assert 5 == struct.unpack_from("<I", plan.params[0])[0]  # P.groups: the sixth workgroup has nothing to do


def test_a_node_too_large_for_the_grid_is_named() -> None:
    with pytest.raises(LimitExceeded) as error:
        plan_of(relu(10, 1024), Target(max_groups=3))
    expected = "aten.relu.default #0: kernel aten.relu.default needs 10 workgroups, the device allows 3 × 3"
    assert expected == str(error.value)


def params_of(plan: Plan, dispatch: PlannedDispatch) -> tuple[int, int]:
    """Offset and length of a dispatch's parameter block."""
    (binding,) = [b for b in dispatch.bindings if plan.buffers[b.buffer].role == "params"]
    return binding.offset, binding.nbytes


def test_equal_parameter_blocks_are_stored_once_at_256_byte_offsets() -> None:
    s = Sketch()
    x = s.input(8)
    a, b = s.tensor("aten.relu.default", x), s.tensor("aten.exp.default", x)
    c = s.tensor("aten.leaky_relu.default", x, 0.25)
    plan, _ = plan_of(s.returns(a, b, c))
    blocks = [params_of(plan, d) for d in plan.dispatches]
    assert [(0, 16), (0, 16), (256, 16)] == blocks
    (block,) = plan.params
    assert 272 == len(block) == plan.buffers[-1].nbytes
    assert (1, 8, 0.25) == struct.unpack_from("<IIf", block, 256)


def test_a_kernel_is_listed_once() -> None:
    s = Sketch()
    y = s.tensor("aten.relu.default", s.tensor("aten.relu.default", s.input(8)))
    plan, _ = plan_of(s.returns(y))
    assert [0, 0] == [d.kernel for d in plan.dispatches]
    assert 1 == len(plan.kernels)


@pytest.mark.parametrize(
    "op, args, dtype",
    [
        ("aten.any.dim", (1,), DType.BOOL),
        ("aten._softmax.default", (-1, False), DType.F16),
        ("aten.amax.default", ((1,),), DType.I8),
    ],
)
def test_words_for_a_packed_result_go_through_a_scratch_and_a_cast(
    op: str, args: tuple[Arg, ...], dtype: DType
) -> None:
    s = Sketch()
    y = s.tensor(op, s.input(3, 5, dtype=dtype), *args)
    plan, memory = plan_of(s.returns(y))
    first, last = plan.dispatches
    between, out = first.bindings[-2].buffer, last.bindings[-2].buffer
    assert "cast" == plan.kernels[last.kernel].name
    assert between == last.bindings[0].buffer
    assert memory.buffer_of[y] == plan.buffers[out] != plan.buffers[between]
    assert plan.buffers[between].nbytes >= y.numel * 4


def test_with_f16_the_halves_are_written_directly() -> None:
    s = Sketch()
    y = s.tensor("aten._softmax.default", s.input(3, 5, dtype=DType.F16), -1, False)
    plan, _ = plan_of(s.returns(y), Target(f16=True))
    assert 1 == len(plan.dispatches)


def written(plan: Plan, dispatch: PlannedDispatch) -> tuple[set[int], list[int]]:
    """Buffers that a dispatch binds to read and to write."""
    access = plan.kernels[dispatch.kernel].access
    pairs = list(zip(dispatch.bindings, access, strict=True))
    return {b.buffer for b, a in pairs if a != "write"}, [b.buffer for b, a in pairs if a == "write"]


def test_no_dispatch_reads_what_it_writes() -> None:
    s = Sketch()
    x = s.input(6, 5)
    for _ in range(3):
        x = s.tensor("aten.add.Tensor", x, s.tensor("aten.var.correction", x, (1,), 1, True))
        x = s.tensor("aten._softmax.default", x, 0, False)
        x = s.tensor("aten.where.self", s.tensor("aten.gt.Scalar", x, 0.5, dtype=DType.BOOL), x, x, dtype=DType.F32)
        x = s.tensor("aten.view_copy.default", x, (6, 5))
    plan, _ = plan_of(s.returns(x))
    assert len(plan.dispatches) > 12
    for dispatch in plan.dispatches:
        reads, writes = written(plan, dispatch)
        assert len(writes) == len(set(writes))
        assert not reads & set(writes)


def test_a_write_to_what_is_read_is_an_error_of_the_lowering() -> None:
    s = Sketch()
    x = s.input(4)
    y = s.tensor("aten.relu.default", x)
    planner = Planner(s.returns(y), Target())
    planner.memory.buffer_of[y] = planner.memory.buffer_of[x]
    with pytest.raises(TypeError) as error:
        planner.cover()
    expected = "aten.relu.default #0: kernel aten.relu.default would write a buffer that it also binds elsewhere"
    assert expected == str(error.value)


def test_scratch_takes_a_temporary_that_is_idle() -> None:
    s = Sketch()
    x = s.input(4, 8)
    total = s.tensor("aten.add.Tensor", s.tensor("aten.relu.default", x), s.tensor("aten.exp.default", x))
    y = s.tensor("aten.var.correction", total, (1,), 1, False)  # the mean of each row is its scratch
    plan, memory = plan_of(s.returns(y))
    mean, _ = [d for d in plan.dispatches if d.label == "aten.var.correction #3"]
    (used,) = written(plan, mean)[1]
    assert plan.buffers[used] in memory.buffers
    assert [(1, 2)] == memory.busy[plan.buffers[used].name]
    assert 3 == len([b for b in plan.buffers if b.role == "temp"])


def test_scratch_gets_a_buffer_of_its_own_where_none_is_idle() -> None:
    s = Sketch()
    y = s.tensor("aten.var.correction", s.input(4, 6), (1,), 1, False)
    plan, memory = plan_of(s.returns(y))
    assert ["scratch0.16"] == [b.name for b in plan.buffers if b.role == "temp" and b not in memory.buffers]


def test_a_scratch_above_the_binding_limit_is_named() -> None:
    s = Sketch()
    y = s.tensor("aten._softmax.default", s.input(4, 9, dtype=DType.F16), -1, False)
    with pytest.raises(LimitExceeded) as error:
        plan_of(s.returns(y), Target(max_binding_bytes=128))
    expected = "aten._softmax.default #0: its scratch of 144 bytes is more than generic binds"
    assert expected == str(error.value)


def shifted(*amounts: int | Sym) -> Graph:
    """A graph of kernels that add a symbolic parameter; ints among the amounts stand in its place."""
    kernel = build(
        "shift",
        "  y_put(group, x_at(group) + sym(P.k));",
        target=Target(),
        reads={"x": Storage(DType.I32)},
        writes={"y": Storage(DType.I32)},
        params=[("k", "sym")],
    )

    def steps(x: Tensor, amount: int | Sym) -> Steps:
        out = yield Out(x.shape, x.dtype)
        yield Launch(kernel, [x], [out], x.numel, {"k": amount})

    parameters = tuple(Parameter(name) for name in ("x", "amount"))
    shift = OpDef("test.shift", parameters, frozenset(), steps=steps)
    x = Tensor("x", DType.I32, (3,), "input")
    graph = Graph("g", [x, *(a for a in amounts if isinstance(a, Sym))])
    for k, amount in enumerate(amounts):
        graph.outputs.append(Tensor(f"y{k}", DType.I32, (3,)))
        graph.nodes.append(Node(shift, (x, amount), (graph.outputs[-1],), f"shift #{k}"))
    return graph


def words_of(plan: Plan) -> list[int]:
    """The symbolic parameter of each dispatch, which binds the syms buffer last."""
    for dispatch in plan.dispatches:
        last = dispatch.bindings[-1]
        assert ("syms", 0, SYM_VECTORS * 16) == (plan.buffers[last.buffer].role, last.offset, last.nbytes)
    return [struct.unpack_from("<I", plan.params[0], params_of(plan, d)[0] + 4)[0] for d in plan.dispatches]


def words(plan: Plan) -> tuple[object, ...]:
    """Return the contents of the syms buffer."""
    (family,) = plan.families
    return family.words


def test_a_symbolic_parameter_is_the_number_of_its_word() -> None:
    plan, _ = plan_of(shifted(Sym("a", 77), Sym("b", 3)))
    assert [0, 1] == words_of(plan)
    assert [("int", 1, 0), ("int", 2, 0)] == [plan.rows[w.row] for w in words(plan)]


def test_the_value_of_a_symbolic_parameter_does_not_change_the_plan() -> None:
    assert plan_of(shifted(Sym("a", 5)))[0] == plan_of(shifted(Sym("a", 6)))[0]


def test_a_literal_in_the_place_of_a_symbolic_int_gets_a_constant_word() -> None:
    plan, _ = plan_of(shifted(4, Sym("a", 77), 4, -9))
    assert [1, 0, 1, 2] == words_of(plan)
    assert (Expr(0), 4, -9) == words(plan)


def test_a_symbolic_int_for_a_plain_parameter_is_refused() -> None:
    spec = build("k", "", target=Target(), reads={}, writes={}, params=[("a", "u32")])
    with pytest.raises(TypeError) as error:
        tables().block(spec, 1, {"a": Sym("n", 4)})
    assert "n=4 is symbolic; the kernel's parameter is not" == str(error.value)


def tables() -> PlanWriter:
    return PlanWriter(Graph("g"), Memory(), Target())


def block(spec: KernelSpec, groups: int, values: dict[str, Any]) -> bytes:
    writer = tables()
    binding, patches = writer.block(spec, groups, values)
    assert () == patches
    assert (0, len(writer.images[0])) == (binding.offset, binding.nbytes)
    return bytes(writer.images[0])


def test_the_block_of_parameters() -> None:
    spec = build("k", "", target=Target(), reads={}, writes={}, params=[("a", "u32"), ("b", "f32"), ("c", "i32")])
    assert not spec.reads_syms
    assert struct.pack("<IIfi", 9, 7, INF, -1) == block(spec, 9, {"c": -1, "a": 7, "b": 1e300})
    assert 16 == len(block(build("k", "", target=Target(), reads={}, writes={}), 1, {}))
    five = build("k", "", target=Target(), reads={}, writes={}, params=[(f"p{n}", "u32") for n in range(4)])
    assert 32 == len(block(five, 1, dict.fromkeys((f"p{n}" for n in range(4)), 1)))
    with pytest.raises(TypeError) as error:
        block(spec, 1, {"a": 1, "b": 2.0, "d": 3})
    assert "kernel k: parameters missing ['c'], unknown ['d']" == str(error.value)


@pytest.mark.parametrize("value", [2**31, -(2**40), INF, float("nan")])
def test_a_parameter_beyond_32_bits_is_named(value: float) -> None:
    spec = build("k", "", target=Target(), reads={}, writes={"y": Storage(DType.F32)}, params=[("n", "i32")])
    with pytest.raises(InvalidProgram) as error:
        block(spec, 1, {"n": value})
    assert f"kernel k cannot take {value} as its n" == str(error.value)


def test_parameters_that_are_sizes_are_patched() -> None:
    """One choice serves all sizes: its parameters, grid and figures are expressions."""
    s = Sketch()
    y = s.tensor("aten.leaky_relu.default", s.input(4096), 0.25)
    plan = Planner(s.returns(y), Target(), [True]).cover().plan()
    for n in (4096, 2000, 1, 0):
        at = plan_at(plan, [(n,)], lambda *_: 0)
        assert (n,) == at.outputs[0].shape
        (dispatch,) = at.dispatches
        if n:
            assert (-(-n // 1024), n, 0.25) == struct.unpack_from("<IIf", at.params[0], params_of(at, dispatch)[0])
        assert (-(-n // 1024), 4 * n, 4 * n) == (dispatch.grid[0], dispatch.read_bytes, dispatch.write_bytes)


def test_nothing_is_dispatched_for_no_elements() -> None:
    plan, _ = plan_of(relu(0, 4))
    assert () == plan.dispatches
    assert (0, 4) == plan.outputs[0].shape


def test_views_cost_nothing_where_the_dtype_stays() -> None:
    s = Sketch()
    x = s.input(2, 6)
    y = s.tensor("aten.view_copy.default", s.tensor("aten.exp.default", x), (3, 4))
    plan, _ = plan_of(s.returns(y))
    assert ["aten.exp.default #0"] == [d.label for d in plan.dispatches]
    assert (3, 4) == plan.outputs[0].shape


def test_a_view_into_another_dtype_is_a_cast() -> None:
    s = Sketch()
    y = s.tensor("aten._to_copy.default", s.input(2, 6), dtype=DType.I32)
    plan, _ = plan_of(s.returns(y))
    assert ["cast"] == [k.name for k in plan.kernels]


def test_a_state_gets_its_new_value_by_a_copy_after_the_pass() -> None:
    s = Sketch()
    old = s.state(3, dtype=DType.I8)
    new = s.tensor("aten.abs.default", old)
    s.graph.writebacks.append((old, new))
    plan, memory = plan_of(s.returns())
    names = [b.name for b in plan.buffers]
    places = names.index(memory.buffer_of[new].name), names.index(memory.buffer_of[old].name)
    assert (Copy(*places, 4),) == plan.copies  # 3 bytes, in whole words


def test_a_program_that_takes_fewer_results_than_there_are_is_refused() -> None:
    s = Sketch()
    x = s.input(2, 4)
    y = s.tensor("aten.max.dim", x, 1, dtype=(DType.F32, DType.I32))
    s.graph.nodes[0].outs = (y,)
    with pytest.raises(InvalidProgram) as error:
        plan_of(s.returns(y))
    assert "aten.max.dim #0: it has more results than the 1 that the program declares" == str(error.value)


def test_ports_are_in_the_order_of_the_graph() -> None:
    s = Sketch()
    a, n, b = s.input(4), s.sym(), s.input(2, dtype=DType.I32)
    y = s.tensor("aten.relu.default", a)
    plan, _ = plan_of(s.returns(b, n, y))
    buffers = [b.name for b in plan.buffers]
    assert plan.inputs == (
        Input(a.name, buffers.index("input0"), DType.F32, (4,)),
        Input(n.name),
        Input(b.name, buffers.index("input1"), DType.I32, (2,)),
    )
    first, number, last = plan.families[0].outputs
    assert (first, last) == plan.outputs
    assert [b.name, y.name] == [p.name for p in plan.outputs]
    assert isinstance(number, Expr) and ("int", 1, 0) == plan.rows[number.row]
