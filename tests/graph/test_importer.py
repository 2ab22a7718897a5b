"""The importer, from a method of a file to calls on slots: real files, and methods by hand for the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptegpu.compiler.partition import mutates
from ptegpu.compiler.program import named_data
from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, UnsupportedProgram
from ptegpu.format import pte, read_program
from ptegpu.format.delegate import BlobCall as BlobCall
from ptegpu.format.delegate import BlobGraph, BlobTensor, Constant, SymInt
from ptegpu.format.ptd import NamedTensor
from ptegpu.graph import importer
from ptegpu.graph.flat import FlatMethod
from ptegpu.graph.importer import NamedData, array_of, import_method
from ptegpu.graph.names import PREPACK
from ptegpu.plan.method import Call, Jump, Move, Operand, Var, variables

DATA = Path(__file__).parent.parent / "data"


def imported(name: str, method: str = "forward", *data: str) -> FlatMethod:
    file = read_program(DATA / f"{name}.pte")
    (file_method,) = [m for m in file.methods if m.name == method]
    return import_method(file_method, named_data(file, [DATA / d for d in data]), mutates)


def calls(linear: FlatMethod) -> list[Call]:
    return [i for i in linear.code if isinstance(i, Call)]


def call(linear: FlatMethod, op: str) -> Call:
    (match,) = [c for c in calls(linear) if c.op == op]
    return match


def slots(linear: FlatMethod) -> dict[str, Var]:
    """Return every slot by its name."""
    operands = [*linear.inputs, *linear.outputs, *(a for c in calls(linear) for a in (*c.args, *c.outs))]
    return {v.name: v for v in variables(tuple(operands))}


def test_a_delegate_is_inlined() -> None:
    linear = imported("mlp")
    expected = ["aten.linear.default", "aten.relu.default", "aten.linear.default", "aten.alias_copy.default"]
    assert expected == [c.op for c in calls(linear)]
    assert "aten.linear.default #0 of delegate 0" == calls(linear)[0].where
    assert "output of delegate 0" == calls(linear)[-1].where


def test_inputs_and_outputs_of_a_delegate_are_those_of_the_call() -> None:
    linear = imported("mlp")
    assert linear.inputs == [calls(linear)[0].args[0]]
    assert linear.outputs == list(calls(linear)[-1].outs)
    (x,) = linear.inputs
    assert isinstance(x, Var)
    assert ("input", "input 0", DType.F32, (2, 8)) == (x.kind, x.name, x.dtype, x.sizes)


def test_a_prepacked_constant_is_the_constant() -> None:
    linear = imported("mlp")
    weight = calls(linear)[0].args[1]
    assert isinstance(weight, Var) and weight.data is not None
    assert ("constant", (16, 8)) == (weight.kind, weight.data.shape)
    assert "et_vk.prepack.default" not in [c.op for c in calls(linear)]


def test_constants_are_views_on_the_file() -> None:
    raw = memoryview((DATA / "mlp.pte").read_bytes())
    file = read_program(raw)
    linear = import_method(file.methods[0], named_data(file, None), mutates)
    content = np.frombuffer(raw, np.uint8)
    constants = [v for v in slots(linear).values() if v.kind == "constant"]
    assert 4 == len(constants)
    assert all(v.data is not None and np.shares_memory(v.data, content) for v in constants)


def test_several_delegates_and_the_calls_between_them_are_one_list() -> None:
    linear = imported("cnn")
    ends = ["of delegate 0"] * 4 + ["_to_dim_order_copy.out #1", "mean.out #2"] + ["of delegate 1"] * 2
    assert len(ends) == len(calls(linear))
    assert all(c.where.endswith(end) for c, end in zip(calls(linear), ends, strict=True))
    mean = call(linear, "aten.mean.dim")
    last = [c for c in calls(linear) if c.where.endswith("of delegate 1")]
    assert last[0].args[0] is mean.outs[0]


def test_kernel_calls_have_their_functional_names() -> None:
    where = {c.where.split(" #")[0]: c.op for c in calls(imported("control"))}
    assert "aten.add.Tensor" == where["aten::add.out"]
    assert "aten.sum.dim_IntList" == where["aten::sum.IntList_out"]
    assert "aten.copy.default" == where["aten::copy_"]


def test_literals_and_lists_are_resolved() -> None:
    control = imported("control")
    assert (1, 0, 2, 1) == call(control, "aten.slice_copy.Tensor").args[1:]
    assert (None, False, (2.0, 2.0)) == call(control, "aten.upsample_bilinear2d.vec").args[1:]
    assert "tanh" == call(control, "aten.gelu.default").args[1]
    assert ((1, 1), 1) == call(control, "aten.split_with_sizes_copy.default").args[1:]
    assert (None, control.inputs[1]) == call(control, "aten.index.Tensor").args[1]
    pool = call(imported("cnn"), "aten.max_pool2d_with_indices.default")
    assert ((2, 2), (), (0, 0), (1, 1), False) == pool.args[1:]


def test_every_result_of_a_call_has_a_slot() -> None:
    control = imported("control")
    assert [(3, 1), (3, 1)] == [o.sizes for o in call(control, "aten.split_with_sizes_copy.default").outs]
    pool = call(imported("cnn"), "aten.max_pool2d_with_indices.default")
    assert [DType.F32, DType.I32] == [o.dtype for o in pool.outs]


def test_outputs_may_be_literals() -> None:
    assert 7 == imported("control").outputs[-1]
    scalars = {m: imported("methods", m).outputs for m in ("get_vocab_size", "get_name", "get_scale", "use_cache")}
    assert {"get_vocab_size": [11], "get_name": ["mlp"], "get_scale": [0.5], "use_cache": [True]} == scalars


def test_jumps_go_to_instructions_of_the_list() -> None:
    linear = imported("control")
    to_else, to_end = [i for i in linear.code if isinstance(i, Jump)]
    first_of_else = linear.code[to_else.target]
    assert isinstance(first_of_else, Call) and first_of_else.where.endswith("#9")
    assert False is to_end.condition
    assert isinstance(linear.code[to_end.target - 1], Move)


def test_a_buffer_that_is_written_is_a_state_with_its_first_value() -> None:
    slots_by_name = slots(imported("control"))
    states = [v for v in slots_by_name.values() if v.kind == "state"]
    assert [("v0", [3.0])] == [(v.name, v.data.tolist()) for v in states if v.data is not None]
    assert "constant" == slots_by_name["v1"].kind


def test_dynamic_values_and_symbolic_ints() -> None:
    linear = imported("dynamic", "forward", "dynamic-0.ptd", "dynamic-1.ptd")
    slots_by_name = slots(linear)
    assert slots_by_name["input 0"].dynamic and (1, 16) == slots_by_name["input 0"].sizes
    assert slots_by_name["v8"].dynamic and not slots_by_name["v0"].dynamic
    view = next(c for c in calls(linear) if c.op == "aten.view_copy.default")
    size = view.args[1]
    assert isinstance(size, tuple) and isinstance(size[0], Var)
    assert (None, 8) == (size[0].dtype, size[1])


def test_a_missing_data_file_is_asked_for() -> None:
    with pytest.raises(InvalidProgram) as error:
        imported("dynamic", "forward", "dynamic-1.ptd")
    assert str(error.value).endswith(": pass its .ptd file")


def tensor(*sizes: int, **more: Any) -> pte.FileTensor:
    return pte.FileTensor(DType.F32, sizes, tuple(range(len(sizes))), **more)


def method(values: list[pte.Value], inputs: list[int], outputs: list[int], *chain: pte.Instruction) -> pte.FileMethod:
    return pte.FileMethod("forward", tuple(values), tuple(inputs), tuple(outputs), (chain,), (), "", "")


def by_hand(file_method: pte.FileMethod, data: NamedData | None = None) -> FlatMethod:
    return import_method(file_method, data or {}, mutates, "model.pte")


def kernel(name: str, *args: int) -> pte.KernelCall:
    return pte.KernelCall(name, args)


def refused(file_method: pte.FileMethod, data: NamedData | None = None) -> str:
    with pytest.raises(InvalidProgram) as error:
        by_hand(file_method, data)
    return str(error.value)


def test_a_view_that_the_exporter_left_out_is_found_by_its_place() -> None:
    """Value 2 is never written, but shares its place with value 1."""
    values = [tensor(2, 6), tensor(2, 6, place=(1, 64)), tensor(3, 4, place=(1, 64)), tensor(3, 4, place=(1, 256))]
    linear = by_hand(method(values, [0], [3], kernel("aten::relu.out", 0, 1, 1), kernel("aten::abs.out", 2, 3, 3)))
    relu, view, absolute = calls(linear)
    assert ("aten.view_copy.default", "view of v1") == (view.op, view.where)
    assert (relu.outs[0], (3, 4)) == view.args
    assert view.outs[0] is absolute.args[0]


def test_an_output_may_be_such_a_view_and_an_input_its_source() -> None:
    values = [tensor(2, 6, place=(1, 0)), tensor(12, place=(1, 0))]
    (view,) = calls(by_hand(method(values, [0], [1])))
    assert ("aten.view_copy.default", (12,)) == (view.op, view.args[1])


def test_a_view_is_of_what_was_written_last_at_its_place() -> None:
    values = [tensor(4), tensor(4, place=(1, 0)), tensor(4, place=(1, 0)), tensor(2, 2, place=(1, 0)), tensor(2, 2)]
    steps = [kernel("aten::abs.out", 0, 1, 1), kernel("aten::neg.out", 1, 2, 2), kernel("aten::relu.out", 3, 4, 4)]
    view = call(by_hand(method(values, [0], [4], *steps)), "aten.view_copy.default")
    assert "view of v2" == view.where


def test_a_place_shared_by_tensors_of_other_sizes_is_no_view() -> None:
    values = [tensor(4), tensor(4, place=(1, 0)), tensor(3, place=(1, 0)), tensor(3)]
    steps = [kernel("aten::abs.out", 0, 1, 1), kernel("aten::neg.out", 2, 3, 3)]
    expected = "model.pte: value 2 shares the memory of value 1, but cannot be a view of it"
    assert expected == refused(method(values, [0], [3], *steps))


def test_planned_memory_that_is_read_before_it_is_written_is_a_state() -> None:
    values = [tensor(4), tensor(4, place=(1, 0)), 1, tensor(4)]
    steps = [kernel("aten::add.out", 0, 1, 2, 3, 3), kernel("aten::copy_", 1, 3, 1)]
    slots_by_name = slots(by_hand(method(values, [0], [3], *steps)))
    assert ("state", None) == (slots_by_name["v1"].kind, slots_by_name["v1"].data)


def test_constants_that_are_written_are_states() -> None:
    ones = memoryview(np.ones(4, np.float32).tobytes())
    values = [tensor(4), tensor(4, data=ones), tensor(4, data=ones), 1, tensor(4)]
    steps = [kernel("aten::add.out", 0, 1, 3, 4, 4), kernel("aten::add.out", 4, 2, 3, 1, 1)]
    slots_by_name = slots(by_hand(method(values, [0], [4], *steps)))
    assert ("state", "constant") == (slots_by_name["v1"].kind, slots_by_name["v2"].kind)


def test_scalars_that_are_written_are_no_literals() -> None:
    values = [tensor(4), 0, 5, tensor(4)]
    steps = [kernel("aten::sym_size.int", 0, 2, 1), kernel("executorch_prim::add.Scalar", 1, 2, 1)]
    size, total = calls(by_hand(method(values, [0], [1], *steps)))
    assert size.outs == total.outs == (total.args[0],)
    assert 5 == total.args[1]


def test_a_scalar_that_is_written_has_its_value_until_then() -> None:
    (total,) = calls(by_hand(method([0, 1], [], [0], kernel("executorch_prim::add.Scalar", 0, 1, 0))))
    assert total.outs[0] is total.args[0]
    assert (None, 0) == (total.outs[0].dtype, total.outs[0].initial)


def test_copy_index_writes_its_first_argument() -> None:
    values = [tensor(3, 2), tensor(2), 1]
    copy = kernel("executorch_prim::et_copy_index.tensor", 0, 1, 2)
    (copy_call,) = calls(by_hand(method(values, [1], [0], copy)))
    assert copy_call.outs == copy_call.args[:1]
    assert 1 == copy_call.args[2]


def test_outputs_in_a_list_are_told_from_arguments() -> None:
    values = [tensor(4), pte.IntList((3, 3)), 0, 2, tensor(2), tensor(2), pte.TensorList((4, 5))]
    (split,) = calls(by_hand(method(values, [0], [4, 5], kernel("aten::split_with_sizes_copy.out", 0, 1, 2, 6, 6))))
    assert ((2, 2), 0) == split.args[1:]
    assert ["v4", "v5"] == [o.name for o in split.outs]


def test_an_optional_scalar_input_that_is_used_is_an_input() -> None:
    values = [tensor(4), None, tensor(4)]
    linear = by_hand(method(values, [0, 1], [2], kernel("aten::add.Scalar_out", 0, 1, 2, 2)))
    n = linear.inputs[1]
    assert isinstance(n, Var)
    assert (None, "input", "input 1") == (n.dtype, n.kind, n.name)


def test_a_scalar_input_is_the_value_it_was_traced_with() -> None:
    linear = by_hand(method([tensor(4), 3, tensor(4)], [0, 1], [2], kernel("aten::add.Scalar_out", 0, 1, 2, 2)))
    assert 3 == linear.inputs[1]


def test_a_literal_cannot_be_written() -> None:
    expected = "model.pte: method forward: value 1 cannot be written"
    lists = [tensor(4), pte.IntList((2,)), 1]
    assert expected == refused(method(lists, [0], [0], kernel("aten::abs.out", 0, 1, 1)))


def test_a_call_without_arguments_is_refused() -> None:
    assert "model.pte: aten::abs.out has no arguments" == refused(method([], [], [], kernel("aten::abs.out")))


def named(data: bytes, dtype: DType | None = DType.F32, sizes: tuple[int, ...] | None = (4,)) -> NamedTensor:
    return NamedTensor(data=memoryview(data), dtype=dtype, sizes=sizes, dim_order=None)


@pytest.mark.parametrize(
    "data, expected",
    [
        ({}, "model.pte: no file has the data 'w' of v0: pass its .ptd file"),
        ({"w": memoryview(bytes(8))}, "model.pte: v0: the data 'w' has 8 bytes, expected 16"),
        ({"w": named(bytes(16), DType.I32)}, "model.pte: v0: the data 'w' is int32[4], not float32[4]"),
        ({"w": named(bytes(16), sizes=(2, 2))}, "model.pte: v0: the data 'w' is float32[2, 2], not float32[4]"),
    ],
)
def test_external_data_must_be_what_the_program_says(data: NamedData, expected: str) -> None:
    assert expected == refused(method([tensor(4, key="w")], [], [0]), data)


def test_other_backends_are_named() -> None:
    steps = [pte.DelegateCall(k, (0,)) for k in range(3)]
    ids = ("CoreMLBackend", "VulkanBackend", "XnnpackBackend", "UncalledBackend")
    delegates = tuple(pte.Delegate(name, memoryview(b"")) for name in ids)
    with pytest.raises(UnsupportedProgram) as error:
        by_hand(replace(method([tensor(4)], [0], [0], *steps), delegates=delegates))
    expected = (
        "method forward calls the backends CoreMLBackend, XnnpackBackend; ptegpu runs VulkanBackend and programs "
        "without a delegate: export with VulkanPartitioner or WebGPUPartitioner"
    )
    assert expected == str(error.value)


def test_element_types_that_do_not_run_are_listed_once_each_with_foreign_backends() -> None:
    complexes = [pte.FileTensor(DType.C64, (2, 3), (0, 1)), pte.FileTensor(DType.C64, (4,), (0,)), tensor(4)]
    steps = [kernel("aten::abs.out", 0, 1, 1), kernel("aten::abs.out", 1, 2, 2)]
    with pytest.raises(UnsupportedProgram) as error:
        by_hand(method([*complexes], [0], [2], *steps))
    expected = (
        "method forward has tensors that ptegpu does not compute with: input 0 is complex64[2, 3], v1 is complex64[4]; "
        "export it with tensors of bools, ints and floats"
    )
    assert expected == str(error.value)
    delegates = (pte.Delegate("XnnpackBackend", memoryview(b"")),)
    with pytest.raises(UnsupportedProgram) as error:
        by_hand(replace(method([*complexes], [0], [2], *steps, pte.DelegateCall(0, (2,))), delegates=delegates))
    backend, types = str(error.value).splitlines()
    assert expected == types
    assert backend.startswith("method forward calls the backend XnnpackBackend; ")


def of_constants(dims: tuple[int, ...], *constants: Constant) -> pte.FileMethod:
    """Return a method that copies constants of these dimensions out of a delegate."""
    count = len(constants)
    values = tuple(BlobTensor(DType.F32, dims, k) for k in range(count))
    graph = BlobGraph("0", (), values, (), tuple(range(count)), constants)
    call = pte.DelegateCall(0, tuple(range(count)))
    outs: list[pte.Value] = [tensor(*dims) for _ in constants]
    file_method = method(outs, [], list(range(count)), call)
    return replace(file_method, delegates=(pte.Delegate("VulkanBackend", graph),))  # type: ignore[arg-type]


@pytest.fixture
def blobs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the blob of a delegate be the graph itself."""
    monkeypatch.setattr(importer, "read_delegate", lambda blob, **_: blob)
    monkeypatch.setattr(importer, "len", lambda x: 0 if isinstance(x, BlobGraph) else len(x), raising=False)


@pytest.mark.usefixtures("blobs_by_hand")
@pytest.mark.parametrize("nbytes", [8, 17, 32])
def test_named_data_of_a_delegate_has_the_bytes_of_its_tensor(nbytes: int) -> None:
    expected = (
        f"model.pte: delegate 0: constant 0 needs 16 bytes, and its data 'w' has {nbytes}; "
        "pass the data that was exported with this program"
    )
    assert expected == refused(of_constants((4,), Constant(None, "w", 16)), {"w": memoryview(bytes(nbytes))})


# Values 0 and 1 of a blob: its input and output; 2 and 3: a constant and its upload; 4: what nothing writes
VALUES = (
    BlobTensor(DType.F32, (4,)),
    BlobTensor(DType.F32, (4,)),
    BlobTensor(DType.F32, (4,), constant=0),
    BlobTensor(DType.F32, (4,)),
    BlobTensor(DType.F32, (4,)),
    1,
)
ADD, UPLOAD = BlobCall(1, "aten.add.Tensor", (0, 3, 5, 1)), BlobCall(0, PREPACK, (2, 3))
NO_VALUE = "which is neither an input, a constant nor the result of an earlier call"


def with_blob(graph: BlobGraph) -> pte.FileMethod:
    """Return a method that calls a delegate with one input and one output."""
    file_method = method([tensor(4), tensor(4)], [0], [1], pte.DelegateCall(0, (0, 1)))
    return replace(file_method, delegates=(pte.Delegate("VulkanBackend", graph),))  # type: ignore[arg-type]


def blob(*calls: BlobCall, outputs: tuple[int, ...] = (1,), **values: BlobTensor) -> BlobGraph:
    """Return a blob of these calls; `v3=…` replaces value 3."""
    changed = [values.get(f"v{k}", v) for k, v in enumerate(VALUES)]
    return BlobGraph("0", calls, tuple(changed), (0,), outputs, (Constant(memoryview(bytes(16)), None, 16),))


@pytest.mark.usefixtures("blobs_by_hand")
def test_an_upload_happens_wherever_it_stands() -> None:
    for graph in (blob(UPLOAD, ADD), blob(ADD, UPLOAD)):
        add = calls(by_hand(with_blob(graph)))[0]
        assert ("aten.add.Tensor", "constant") == (add.op, add.args[1].kind)  # type: ignore[union-attr]


@pytest.mark.usefixtures("blobs_by_hand")
def test_checks_of_sizes_in_a_delegate_compute_nothing() -> None:
    values = (*VALUES, SymInt(5), "u0 >= 1", None, None)  # 6 to 9: a size, a message, an absent result, and no bound
    checks = (
        BlobCall(2, "aten._assert_scalar.default", (6, 7, 8)),
        BlobCall(3, "aten.sym_constrain_range_for_size.default", (6, 5, 9, 8)),
    )
    graph = replace(blob(UPLOAD, *checks, ADD), values=values, inputs=(0, 6))
    file_method = method([tensor(4), 3, tensor(4)], [0], [2], pte.DelegateCall(0, (0, 1, 2)))
    linear = by_hand(replace(file_method, delegates=(pte.Delegate("VulkanBackend", graph),)))  # type: ignore[arg-type]
    assert ["aten.add.Tensor", "aten.alias_copy.default"] == [c.op for c in calls(linear)]
    expected = f"aten._assert_scalar.default #2 reads d0.v6, {NO_VALUE}"
    assert f"model.pte: delegate 0: {expected}" == refused(with_blob(replace(graph, inputs=(0,))))


F16, F32_IN_F16 = (BlobTensor(DType.F16, (4,), staging=s) for s in (DType.F16, DType.F32))
NOT_OF_AN_EXPORTER = {
    "an upload of nothing": (
        blob(BlobCall(7, PREPACK, (3,)), ADD),
        "et_vk.prepack.default #7 has 1 values: expected a constant and one result",
    ),
    "an upload of two": (
        blob(BlobCall(7, PREPACK, (2, 2, 3)), ADD),
        "et_vk.prepack.default #7 has 3 values: expected a constant and one result",
    ),
    "an upload of no constant": (
        blob(BlobCall(7, PREPACK, (4, 3)), ADD),
        "et_vk.prepack.default #7 uploads d0.v4:float32[4], which is not a constant",
    ),
    "an upload to an input": (
        blob(BlobCall(7, PREPACK, (2, 0)), ADD),
        "et_vk.prepack.default #7 writes input 0:float32[4], which already has a value",
    ),
    "an upload as another shape": (
        blob(UPLOAD, ADD, v3=BlobTensor(DType.F32, (2, 2))),
        "et_vk.prepack.default #0 uploads the constant d0.v2:float32[4] to float32[2, 2]",
    ),
    "no upload": (blob(ADD), f"aten.add.Tensor #1 reads d0.v3:float32[4], {NO_VALUE}"),
    "an operator that reads its result": (
        blob(UPLOAD, replace(ADD, args=(1, 3, 5, 1))),
        f"aten.add.Tensor #1 reads d0.v1:float32[4], {NO_VALUE}",
    ),
    "an operator that writes an int": (
        blob(UPLOAD, replace(ADD, args=(0, 3, 5, 5))),
        "value 5 cannot be a result of aten.add.Tensor #1",
    ),
    "an operator that writes an input": (
        blob(UPLOAD, replace(ADD, args=(0, 3, 5, 0)), outputs=(0,)),
        "aten.add.Tensor #1 writes input 0:float32[4], which already has a value",
    ),
    "an output that nothing writes": (blob(UPLOAD, ADD, outputs=(4,)), f"its output 0 is d0.v4:float32[4], {NO_VALUE}"),
    "an output twice": (
        blob(UPLOAD, ADD, outputs=(1, 1)),
        "it has 2 outputs, the call lists 1; output 0 cannot be a buffer's new value: it is listed 2 times",
    ),
    "an output that is overwritten": (
        blob(
            UPLOAD,
            replace(ADD, args=(0, 3, 5, 4)),
            BlobCall(2, "aten.relu.default", (4, 1)),
            outputs=(4, 1),
            v1=BlobTensor(DType.F32, (4,), memory=7),
            v4=BlobTensor(DType.F32, (4,), memory=7),
        ),
        "it has 2 outputs, the call lists 1; output 0 cannot be a buffer's new value: "
        "aten.relu.default #2 overwrites it",
    ),
    "an input of another type": (
        blob(UPLOAD, ADD, v0=F16),
        "its input 0 is float16, the call's value is input 0:float32[4]; export the program again",
    ),
    "an output of another type": (
        blob(UPLOAD, ADD, v1=BlobTensor(DType.F32, (4,), staging=DType.I32)),
        "its output 1 is float32 staged as int32, the call's value is v1:float32[4]; export the program again",
    ),
}


@pytest.mark.usefixtures("blobs_by_hand")
@pytest.mark.parametrize("graph, expected", NOT_OF_AN_EXPORTER.values(), ids=NOT_OF_AN_EXPORTER)
def test_what_no_exporter_writes_is_refused(graph: BlobGraph, expected: str) -> None:
    assert f"model.pte: delegate 0: {expected}" == refused(with_blob(graph))


@pytest.mark.usefixtures("blobs_by_hand")
def test_f16_programs_take_and_give_f32() -> None:
    linear = by_hand(with_blob(blob(replace(ADD, args=(0, 0, 5, 1)), v0=F32_IN_F16, v1=F32_IN_F16)))
    assert ["aten.alias_copy.default", "aten.add.Tensor", "aten.alias_copy.default"] == [c.op for c in calls(linear)]


@pytest.mark.usefixtures("blobs_by_hand")
def test_constants_of_one_key_are_of_one_size() -> None:
    data = {"w": named(np.arange(4, dtype=np.float32).tobytes())}
    tied = by_hand(of_constants((4,), Constant(None, "w", 16), Constant(None, "w", 16)), data)
    assert [[0, 1, 2, 3]] * 2 == [c.args[0].data.tolist() for c in calls(tied)]  # type: ignore[union-attr]
    empty = by_hand(of_constants((0, 4), Constant(None, "w", 16)), data)
    assert [(0, 4)] == [c.args[0].data.shape for c in calls(empty)]  # type: ignore[union-attr]
    assert "constant 0 needs 8 bytes" in refused(of_constants((2,), Constant(None, "w", 8)), data)


def test_bytes_in_another_dimension_order_are_read_logically() -> None:
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    stored = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    array = array_of(memoryview(stored.tobytes()), DType.F32, (1, 2, 3, 4), (0, 2, 3, 1))
    np.testing.assert_array_equal(x, array)


def test_variables_of_an_operand() -> None:
    a, b = Var("a", DType.F32), Var("b", None)
    operand: Operand = (a, 1, (None, b, (a,)), "x")
    assert [a, b, a] == variables(operand)
    assert ["a:float32[]", "b"] == [repr(a), repr(b)]
