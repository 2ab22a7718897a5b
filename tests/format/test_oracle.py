"""A comparison with ExecuTorch's own Python readers: both must read the same program, value by value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ptegpu.format import delegate as blobs
from ptegpu.format import pte as ours
from ptegpu.format.container import SCALAR_TYPES
from ptegpu.format.delegate import DATA_TYPES, read_delegate

pytestmark = pytest.mark.torch
DATA = Path(__file__).parent.parent / "data"
PROGRAMS = sorted(DATA.glob("*.pte"))


def expected_value(value: Any, program: Any, states: Any) -> Any:
    match type(value).__name__:
        case "Null":
            return None
        case "Int":
            return value.int_val
        case "Bool":
            return value.bool_val
        case "Double":
            return float(value.double_val)
        case "String":
            return value.string_val
        case "IntList":
            return ours.IntList(tuple(value.items))
        case "DoubleList":
            return ours.FloatList(tuple(value.items))
        case "TensorList":
            return ours.TensorList(tuple(value.items))
        case "OptionalTensorList":
            return ours.TensorList(tuple(None if item == -1 else item for item in value.items), optional=True)
        case "Tensor":
            return expected_tensor(value, program, states)
    raise AssertionError(value)


def expected_tensor(value: Any, program: Any, states: Any) -> ours.FileTensor:
    extra, index, planned = value.extra_tensor_info, value.data_buffer_idx, value.allocation_info is not None
    external = extra is not None and extra.location == 1
    inside, dtype = index > 0 and not external, SCALAR_TYPES[int(value.scalar_type)]
    nbytes = math.prod(value.sizes) * dtype.size  # their storage has padding behind it
    return ours.FileTensor(
        dtype,
        tuple(value.sizes),
        tuple(value.dim_order),
        dynamic=value.shape_dynamism > 0,
        data=memoryview(program.constant_buffer[index].storage)[:nbytes] if inside and not planned else None,
        initial=memoryview(states[index].storage)[:nbytes] if inside and planned else None,
        planned=planned,
        place=expected_place(value.allocation_info),
        key=extra.fully_qualified_name if external else None,
        name=extra.fully_qualified_name if extra is not None else None,
    )


def expected_place(info: Any) -> tuple[int, int] | None:
    return None if info is None else (info.memory_id, info.memory_offset_low + (info.memory_offset_high << 32))


def expected_instruction(call: Any, operators: list[str]) -> ours.Instruction:
    match type(call).__name__:
        case "KernelCall":
            return ours.KernelCall(operators[call.op_index], tuple(call.args))
        case "DelegateCall":
            return ours.DelegateCall(call.delegate_index, tuple(call.args))
        case "MoveCall":
            return ours.MoveCall(call.move_from, call.move_to)
        case "JumpFalseCall":
            return ours.JumpFalse(call.cond_value_index, call.destination_instruction)
    raise AssertionError(call)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_agree(path: Path) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary

    file, theirs = ours.read_program(path), deserialize_pte_binary(path.read_bytes())
    assert len(file.methods) == len(theirs.program.execution_plan)
    for method, plan in zip(file.methods, theirs.program.execution_plan):
        operators = [f"{op.name}.{op.overload}" if op.overload else op.name for op in plan.operators]
        blobs = [theirs.program.backend_delegate_data[delegate.processed.index].data for delegate in plan.delegates]
        trees = plan.container_meta_type
        assert method.name == plan.name
        assert (method.inputs, method.outputs) == (tuple(plan.inputs), tuple(plan.outputs))
        assert (method.input_tree, method.output_tree) == (trees.encoded_inp_str, trees.encoded_out_str)
        assert method.values == tuple(expected_value(v.val, theirs.program, theirs.mutable_data) for v in plan.values)
        assert method.chains == tuple(
            tuple(expected_instruction(entry.instr_args, operators) for entry in chain.instructions)
            for chain in plan.chains
        )
        assert [delegate.id for delegate in method.delegates] == [delegate.id for delegate in plan.delegates]
        assert [bytes(delegate.blob) for delegate in method.delegates] == blobs
    named = {} if theirs.named_data is None else theirs.named_data.pte_data
    assert {key: bytes(data) for key, data in file.named_data.items()} == {
        key: theirs.named_data.buffers[entry.buffer_index] for key, entry in named.items()
    }


def expected_blob_value(value: Any) -> blobs.BlobValue:
    match type(value).__name__:
        case "Null":
            return None
        case "Int":
            return value.int_val
        case "Bool":
            return value.bool_val
        case "Double":
            return float(value.double_val)
        case "String":
            return value.string_val
        case "SymInt":
            return blobs.SymInt(value.value)
        case "IntList":
            return blobs.Ints(tuple(value.items))
        case "DoubleList":
            return ours.FloatList(tuple(value.items))
        case "BoolList":
            return ours.BoolList(tuple(value.items))
        case "ValueList":
            return blobs.ValueList(tuple(value.items))
        case "VkTensor":
            dtype, staging = DATA_TYPES[int(value.datatype)], DATA_TYPES.get(int(value.staging_datatype))
            return blobs.BlobTensor(dtype, tuple(value.dims), value.constant_id, value.mem_obj_id, staging)
    raise AssertionError(value)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_delegates_agree(path: Path) -> None:
    from executorch.backends.vulkan.serialization import vulkan_graph_serialize as upstream

    for method in ours.read_program(path).methods:
        for delegate in method.delegates:
            graph = read_delegate(delegate.blob)
            theirs = upstream.flatbuffer_to_vk_graph(upstream.extract_vk_flatbuffer(bytes(delegate.blob)))
            assert graph.version == theirs.version
            assert graph.values == tuple(expected_blob_value(value.value) for value in theirs.values)
            assert graph.calls == tuple(
                blobs.BlobCall(call.node_id, call.name, tuple(call.args)) for call in theirs.chain
            )
            assert (graph.inputs, graph.outputs) == (tuple(theirs.input_ids), tuple(theirs.output_ids))
            assert [(c.key, c.nbytes) for c in graph.constants] == [(c.named_key, c.length) for c in theirs.constants]


def test_every_element_type_of_executorch_has_its_name_and_size() -> None:
    from executorch.exir.scalar_type import ScalarType
    from executorch.exir.tensor import scalar_type_table

    expected = {int(code): (str(dtype), dtype.itemsize) for dtype, code in scalar_type_table.items()}
    ours = {code: (f"torch.{dtype.value}", dtype.size) for code, dtype in SCALAR_TYPES.items()}
    assert {code: ours[code] for code in expected} == expected
    assert {int(code) for code in ScalarType} <= set(SCALAR_TYPES)
