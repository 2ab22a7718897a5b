"""Programs: real ones, hand-made ones with rare parts, and the exact text of each refusal."""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.format.build import (
    Field,
    Table,
    Tables,
    Text,
    Vector,
    f64,
    flatbuffer,
    i8,
    i32,
    i64,
    ids,
    program,
    table,
    text,
    u8,
    u32,
    u64,
    union,
)

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram
from ptegpu.format import source
from ptegpu.format.pte import (
    BoolList,
    Delegate,
    DelegateCall,
    FileMethod,
    FileTensor,
    FloatList,
    FreeCall,
    IntList,
    JumpFalse,
    KernelCall,
    MoveCall,
    TensorList,
    Value,
    read_program,
)

DATA = Path(__file__).parent.parent / "data"


# Real programs


def test_a_delegated_program() -> None:
    file = read_program(DATA / "mlp.pte")
    (method,) = file.methods
    assert (file.nbytes, file.version, file.path) == ((DATA / "mlp.pte").stat().st_size, 0, str(DATA / "mlp.pte"))
    assert (method.name, method.inputs, method.outputs) == ("forward", (0,), (1,))
    assert method.values == (
        FileTensor(DType.F32, (2, 8), (0, 1), planned=True, place=(1, 0)),
        FileTensor(DType.F32, (2, 4), (0, 1), planned=True, place=(1, 64)),
    )
    assert method.chains == ((DelegateCall(0, (0, 1)),),)
    assert method.delegates[0].id == "VulkanBackend"
    assert '"builtins.tuple"' in method.input_tree
    assert method.output_tree == '[1, {"type": null, "context": null, "children_spec": []}]'
    assert sorted(len(data) for data in file.named_data.values()) == [16, 64, 256, 512]


def test_channels_last_is_an_order_of_dimensions() -> None:
    (method,) = read_program(DATA / "cnn.pte").methods
    assert method.values[method.inputs[0]] == FileTensor(
        DType.F32, (1, 3, 8, 8), (0, 2, 3, 1), planned=True, place=(1, 0)
    )


def test_dynamic_shapes_and_external_constants() -> None:
    (method,) = read_program(DATA / "dynamic.pte").methods
    assert method.values[0] == FileTensor(DType.F32, (8,), (0,), key="period", name="period")
    assert method.values[method.inputs[0]] == FileTensor(
        DType.I64, (1, 16), (0, 1), dynamic=True, planned=True, place=(1, 0)
    )


def test_every_kind_of_value_and_instruction() -> None:
    (method,) = read_program(DATA / "control.pte").methods
    (chain,) = method.chains
    assert {type(value) for value in method.values} == {
        *(type(None), bool, int, str, FileTensor, IntList, TensorList, FloatList)
    }
    assert {type(instruction) for instruction in chain} == {KernelCall, JumpFalse, MoveCall}
    steps, constant = method.values[0], method.values[1]
    assert isinstance(steps, FileTensor) and steps.initial is not None and steps.planned
    assert np.frombuffer(steps.initial, "<f4").tolist() == [3.0]
    assert isinstance(constant, FileTensor) and constant.data is not None and not constant.planned
    assert np.frombuffer(constant.data, "<f4").tolist() == [float(n) for n in range(12)]
    assert TensorList((None, 4), optional=True) in method.values
    assert FloatList((2.0, 2.0)) in method.values
    assert "tanh" in method.values
    assert chain[4] == JumpFalse(14, 9)
    assert "aten::copy_" in [call.operator for call in chain if isinstance(call, KernelCall)]
    assert "aten::gt.Scalar_out" in [call.operator for call in chain if isinstance(call, KernelCall)]


def test_several_methods_and_constant_ones() -> None:
    methods = {method.name: method for method in read_program(DATA / "methods.pte").methods}
    scalars = {name: methods[name].values for name in ("get_vocab_size", "get_name", "get_scale", "use_cache")}
    assert set(methods) == {"forward", "encode", *scalars}
    assert scalars == {"get_vocab_size": (11,), "get_name": ("mlp",), "get_scale": (0.5,), "use_cache": (True,)}
    assert methods["get_name"].chains == ((),)


# Where bytes come from


def test_constants_are_views_on_the_mapped_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SMALL", 0)
    file = read_program(DATA / "control.pte")
    constant = file.methods[0].values[1]
    assert isinstance(constant, FileTensor) and constant.data is not None
    assert isinstance(constant.data.obj, mmap.mmap)
    assert constant.data.readonly
    assert len(constant.data) == constant.nbytes == 48


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_memory_is_read_as_a_file_is(kind: Callable[[bytes], bytes]) -> None:
    content = (DATA / "control.pte").read_bytes()
    file, expected = read_program(kind(content), name="x"), read_program(DATA / "control.pte")
    assert file.path == "x"
    assert dataclasses.replace(file, path=None) == dataclasses.replace(expected, path=None)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_program(tmp_path / "no.pte")


def test_a_directory_and_a_pipe_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").touch()
    for path, what in ((tmp_path / "checkpoint", "a directory"), (tmp_path / "pipe", "not a regular file")):
        with pytest.raises(InvalidProgram) as caught:
            read_program(path)
        assert str(caught.value) == f"{path}: not an ExecuTorch program (.pte): it is {what}"


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    """The message is that of `ptegpu export`."""
    with pytest.raises(InvalidProgram) as caught:
        read_program(tmp_path)
    expected = f"{tmp_path} has no config.json: give a program (.pte) or the folder of a Hugging Face checkpoint"
    assert expected == str(caught.value)


FOREIGN = {
    b"": "it is empty",
    b"abc": "it starts with 61 62 63",
    bytes(64): "it starts with 00 00 00 00 00 00 00 00",
    b"PK\x03\x04" + bytes(26) + b"model/data.pkl": "this looks like a PyTorch zip archive (.pt, .pth or .pt2)",
    b"PK\x03\x04" + bytes(26) + b"word/document.xml": "this looks like a zip archive",
    b"\x80\x02\x8a\x0a": "this looks like a Python pickle (an old .pt, perhaps)",
    b"GGUF\x03\x00\x00\x00": "this looks like a GGUF model",
    b'\x40\x00\x00\x00\x00\x00\x00\x00{"a":': "this looks like a safetensors file",
    b"\x08\x08\x12\x07pytorch": "this looks like an ONNX model",
    b"version https://git-lfs.github.com/spec/v1": "this looks like a Git LFS pointer (run `git lfs pull`)",
    b"<!DOCTYPE html>": "this looks like a web page instead of the intended download",
    b"\x1f\x8b\x08\x00": "this looks like a gzip archive",
    b"\x7fELF\x02\x01": "this looks like an executable or a library",
    b"\x1c\x00\x00\x00TFL3": "this looks like a TensorFlow Lite model",
    b"\x1c\x00\x00\x00FT01": "this looks like an ExecuTorch data file (.ptd)",
    b"\x1c\x00\x00\x00ET11": "this looks like an ExecuTorch program of another format version",
    b"\x1c\x00\x00\x00BP08": "this looks like an ExecuTorch bundled program (.bpte)",
    b"\x00\x00\x00\x00VH00": "this looks like a bare Vulkan delegate blob",
}


@pytest.mark.parametrize("content", FOREIGN, ids=FOREIGN.values())
def test_a_foreign_file_is_named(content: bytes) -> None:
    with pytest.raises(InvalidProgram) as caught:
        read_program(content, name="m")
    assert str(caught.value).removesuffix(" (at byte 0)") == f"m: not an ExecuTorch program (.pte): {FOREIGN[content]}"


# Hand-made programs


def evalue(kind: int, *fields: Field | None) -> Table:
    return union(kind, table(*fields))


def tensor(
    sizes: list[int] | None = None,
    *,
    dtype: int = 6,
    order: list[int] | None = None,
    more: dict[int, Field] | None = None,
) -> Table:
    sizes = [2] if sizes is None else sizes
    order = list(range(len(sizes))) if order is None else order
    return union(5, Table({0: i8(dtype), 2: Vector("i", sizes), 3: Vector("B", order), **(more or {})}))


def plan(*values: Table, more: dict[int, Field] | None = None, instructions: list[Table] | None = None) -> Table:
    chain = table(None, None, Tables(instructions or []))
    return Table({0: text("forward"), 2: Tables(list(values)), 5: Tables([chain]), **(more or {})})


def of(*plans: Table, **slots: Field) -> Table:
    """A program; `s7=…` sets slot 7."""
    return Table({1: Tables(list(plans)), **{int(name[1:]): value for name, value in slots.items()}})


def read(root: Table, segments: bytes = b"") -> FileMethod:
    (method,) = read_program(program(root, segments)).methods
    return method


def test_every_kind_of_value_by_hand() -> None:
    built: dict[Table, Value] = {
        evalue(1): None,
        evalue(2, i64(-5)): -5,
        evalue(2): 0,
        evalue(3, u8(1)): True,
        evalue(4, f64(-np.inf)): -np.inf,
        tensor([3, 0, 2], order=[1, 0, 2]): FileTensor(DType.F32, (3, 0, 2), (1, 0, 2)),
        tensor([]): FileTensor(DType.F32, (), ()),
        evalue(6, text("né")): "né",
        evalue(7, Vector("q", [1, 0])): IntList((1, 0)),
        evalue(8, Vector("d", [0.5])): FloatList((0.5,)),
        evalue(9, Vector("B", [0, 1])): BoolList((False, True)),
        evalue(10, ids(5, 6)): TensorList((5, 6)),
        evalue(11, ids(5, -1, 0)): TensorList((5, None, 0), optional=True),
    }
    assert read(of(plan(*built))).values == tuple(built.values())


def test_every_instruction_by_hand() -> None:
    more: dict[int, Field] = {
        3: ids(0),
        4: ids(1),
        6: Tables([table(text("aten::add"), text("out")), table(text("aten::foo"), text("")), table(text("bare"))]),
        7: Tables([table(text("Backend"), table(i8(0), u32(0)), Tables([table(text("k"), Vector("B", [1, 2]))]))]),
        8: Vector("q", [0, 64]),
    }
    instructions = [
        *(union(1, table(i32(n), ids(0, 1))) for n in range(3)),
        union(2, table(None, ids(1))),
        union(3, table(i32(0), i32(1))),
        union(4, table(i32(1), i32(6))),
        union(5, table(i32(1))),
    ]
    method = read(of(plan(evalue(1), evalue(1), more=more, instructions=instructions), s3=Tables([blob_table()])))
    assert method.chains == (
        (
            KernelCall("aten::add.out", (0, 1)),
            KernelCall("aten::foo", (0, 1)),
            KernelCall("bare", (0, 1)),
            DelegateCall(0, (1,)),
            MoveCall(0, 1),
            JumpFalse(1, 6),
            FreeCall(1),
        ),
    )
    (delegate,) = method.delegates
    assert dataclasses.replace(delegate, offset=0) == Delegate("Backend", memoryview(b"blob"))
    assert (method.inputs, method.outputs) == ((0,), (1,))
    assert (method.input_tree, method.output_tree) == ("", "")


def blob_table() -> Table:
    return table(Vector("B", list(b"blob")))


def test_an_inline_delegate_knows_its_place() -> None:
    content = program(of(plan(more={7: Tables([table(text("B"), table())])}), s3=Tables([blob_table()])))
    (delegate,) = read_program(content).methods[0].delegates
    assert content[delegate.offset : delegate.offset + 4] == b"blob"


def test_a_program_without_header_has_no_segments() -> None:
    content = flatbuffer(of(plan(evalue(2, i64(3)))), b"ET12")
    assert read_program(content).methods[0].values == (3,)


def test_a_program_without_methods_is_one() -> None:
    assert read_program(program(table())).methods == ()


def test_a_short_header_says_nothing_of_the_segments_size() -> None:
    content = bytearray(program(of(plan(evalue(1))), b"segment"))
    struct.pack_into("<I", content, 12, 24)
    struct.pack_into("<Q", content, 32, 1 << 60)
    assert read_program(content).methods[0].values == (None,)


def test_inline_constants_of_old_programs() -> None:
    buffers = Tables([table(), table(Vector("B", list(range(12))))])
    (value,) = read(of(plan(tensor([2], more={5: u32(1)})), s2=buffers)).values
    assert isinstance(value, FileTensor) and value.data is not None
    assert bytes(value.data) == bytes(range(8))


SEGMENTS = {"s4": Tables([table(u64(0), u64(8)), table(u64(8), u64(4))]), "s5": table(u32(0), Vector("Q", [0, 4]))}
STATES = {"s6": Tables([table(u32(1), Vector("Q", [0])), table(u32(1), Vector("Q", [0, 0]))])}
TWELVE = bytes(range(12))


def test_constants_and_states_in_segments() -> None:
    state: dict[int, Field] = {5: u32(1), 6: table(u32(1), u32(4), u32(2)), 9: table(u64(1), text("state"))}
    values, memory = (tensor([1], more={5: u32(1)}), tensor([1], more=state)), Vector("q", [0, 1 << 40])
    method = read(of(plan(*values, more={8: memory}), **SEGMENTS, **STATES), TWELVE)
    constant, mutable = method.values
    assert isinstance(constant, FileTensor) and constant.data == bytes([4, 5, 6, 7]) and constant.initial is None
    assert isinstance(mutable, FileTensor) and mutable.initial == bytes([8, 9, 10, 11]) and mutable.data is None
    assert (mutable.planned, mutable.place, mutable.key) == (True, (1, (2 << 32) + 4), None)


def test_an_empty_constant_has_no_bytes() -> None:
    (value,) = read(of(plan(tensor([0, 3], more={5: u32(1)})), **SEGMENTS), TWELVE).values
    assert isinstance(value, FileTensor) and value.data == b"" and (value.numel, value.nbytes) == (0, 0)


def test_named_data_may_share_a_segment() -> None:
    entries = Tables([table(text("a"), u32(1)), table(text("b"), u32(1))])
    file = read_program(program(of(s7=entries, **SEGMENTS), TWELVE)).named_data
    assert dict(file) == {"a": TWELVE[8:], "b": TWELVE[8:]}


def test_shapes_without_bound() -> None:
    (value,) = read(of(plan(tensor([1], more={8: i8(2)})))).values
    assert value == FileTensor(DType.F32, (1,), (0,), dynamic=True, bounded=False)


@pytest.mark.parametrize(
    "code,dtype", [(0, DType.U8), (4, DType.I64), (11, DType.BOOL), (15, DType.BF16), (29, DType.U64)]
)
def test_element_types(code: int, dtype: DType) -> None:
    (value,) = read(of(plan(tensor([3], dtype=code)))).values
    assert isinstance(value, FileTensor) and value.dtype is dtype and value.nbytes == 3 * dtype.size


def calls(kind: int, *fields: Field | None) -> Table:
    return of(plan(evalue(1), instructions=[union(kind, table(*fields))]))


EXTERNAL: dict[int, Field] = {9: table(None, None, i8(1))}

REFUSED: list[tuple[Table, str]] = [
    (of(plan(tensor(dtype=30))), "unknown element type 30"),
    (of(plan(tensor(dtype=-1))), "unknown element type -1"),
    (of(plan(tensor([1] * 17))), "a list of 17 items is longer than 16"),
    (of(plan(tensor([2, -1]))), "tensor sizes [2, -1] are negative"),
    (of(plan(tensor([2, 3], order=[0, 0]))), "dimension order [0, 0] does not fit the sizes [2, 3]"),
    (of(plan(tensor([2, 3], order=[0]))), "dimension order [0] does not fit the sizes [2, 3]"),
    (of(plan(tensor([1 << 30] * 3))), f"a tensor of sizes {[1 << 30] * 3} is too large"),
    (of(plan(tensor(more={1: i32(4)}))), "a tensor with storage offset 4: only 0 is supported"),
    (of(plan(tensor(more={8: i8(3)}))), "unknown kind of dynamic shape 3"),
    (of(plan(tensor(more=EXTERNAL))), "the name of a tensor outside the file is missing"),
    (of(plan(tensor(more={9: table(None, None, i8(2))}))), "unknown place 2 of a tensor"),
    (of(plan(tensor(more={5: u32(1)}))), "constant 1 does not exist: there are 0"),
    (of(plan(tensor([1], more={5: u32(2)})), **SEGMENTS), "constant 2 does not exist: there are 2"),
    (
        of(plan(tensor([2], more={5: u32(1)})), **SEGMENTS),
        "a constant of 8 bytes at 4 ends after its segment of 8 bytes",
    ),
    (
        of(plan(tensor([4], more={5: u32(0), 6: table()})), s6=Tables([table(u32(9), Vector("Q", [0, 0]))])),
        "segment 9 does not exist: there are 0",
    ),
    (of(plan(tensor(more={5: u32(1), 6: table()}))), "mutable data segment 0 does not exist: there are 0"),
    (
        of(plan(tensor([9], more={5: u32(1)})), s2=Tables([table(), blob_table()])),
        "constant 1 holds 4 bytes, its tensor needs 36",
    ),
    (of(s2=Tables([table()]), **SEGMENTS), "the program has both inline constants and a constant segment"),
    (of(s4=Tables([table(u64(8), u64(5))])), "segment 0 ends at byte {end}, the file at {size}"),
    (of(s7=Tables([table(text("a"), u32(2))]), **SEGMENTS), "segment 2 does not exist: there are 2"),
    (of(s7=Tables([table(None, u32(1))]), **SEGMENTS), "the key of named data is missing"),
    (of(s7=Tables([table(text("a")), table(text("a"))]), **SEGMENTS), "two named data have the key 'a'"),
    (of(plan(), plan()), "two methods have the name 'forward'"),
    (of(table()), "a method's name is missing"),
    (of(table(text("f"))), "method 'f' has no instructions"),
    (of(plan(more={8: Vector("q", [0, -1])})), "method 'forward' plans a negative buffer size"),
    (of(plan(tensor(more={6: table()}))), "planned memory 0 does not exist: there are 0"),
    (
        of(plan(tensor([2], more={6: table(u32(1), u32(8))}), more={8: Vector("q", [0, 15])})),
        "a tensor of 8 bytes at 8 ends after its planned memory of 15 bytes",
    ),
    (of(plan(more={3: ids(0)})), "value 0 does not exist: there are 0"),
    (of(plan(evalue(1), more={4: ids(0, -2)})), "value -2 does not exist: there are 1"),
    (of(plan(evalue(0))), "unknown kind of value 0"),
    (of(plan(evalue(12))), "unknown kind of value 12"),
    (of(plan(evalue(6))), "a string is missing"),
    (of(plan(evalue(6, Text(b"\xc3")))), "a string is not valid UTF-8"),
    (of(plan(table(u8(1)))), "a value is missing"),
    (of(plan(evalue(7, Vector("q", [1])))), "value 1 does not exist: there are 1"),
    (of(plan(evalue(7, Vector("q", [1])), evalue(3))), "value 1 in a list of ints is not an int"),
    (of(plan(evalue(10, ids(1)), evalue(1))), "value 1 in a list of tensors is not a tensor"),
    (of(plan(evalue(10, ids(-1)))), "value -1 does not exist: there are 1"),
    (of(plan(evalue(11, ids(1)), evalue(2))), "value 1 in a list of tensors is not a tensor"),
    (of(plan(evalue(11, ids(-2)))), "value -2 does not exist: there are 1"),
    (of(plan(evalue(8, Vector("d", [0.0] * 4097)))), "a list of 4097 items is longer than 4096"),
    (calls(0), "unknown kind of instruction 0"),
    (calls(1), "operator 0 does not exist: there are 0"),
    (calls(2), "delegate 0 does not exist: there are 0"),
    (calls(3, i32(0), i32(1)), "value 1 does not exist: there are 1"),
    (calls(4, i32(0), i32(2)), "jump destination 2 does not exist: there are 2"),
    (calls(4, i32(0), i32(-1)), "jump destination -1 does not exist: there are 2"),
    (calls(5, i32(-1)), "value -1 does not exist: there are 1"),
    (of(plan(more={6: Tables([table()])})), "an operator's name is missing"),
    (of(plan(more={7: Tables([table(text("B"))])})), "a delegate has no blob"),
    (of(plan(more={7: Tables([table(text("B"), table(i8(2)))])})), "unknown place 2 of a delegate blob"),
    (of(plan(more={7: Tables([table(text("B"), table(i8(1)))])})), "segment 0 does not exist: there are 0"),
    (of(plan(more={7: Tables([table(text("B"), table())])})), "inline delegate blob 0 does not exist: there are 0"),
]


@pytest.mark.parametrize(("root", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_bad_program_is_refused_with_the_reason(root: Table, reason: str) -> None:
    content = program(root, TWELVE)
    with pytest.raises(InvalidProgram) as caught:
        read_program(content)
    assert caught.value.reason == reason.format(end=len(content) + 1, size=len(content))
    assert caught.value.offset is not None and 0 <= caught.value.offset < len(content)


def test_a_segment_needs_a_header_that_knows_of_segments() -> None:
    with pytest.raises(InvalidProgram) as caught:
        read_program(flatbuffer(of(s4=Tables([table(u64(8), u64(1))])), b"ET12"))
    assert caught.value.reason == "segment 0 has 1 bytes, but the header declares no segments"


HEADERS = [
    (12, "I", 23, "a header of 23 bytes is too short (at byte 12)"),
    (16, "Q", 99999, "truncated: the table area ends at byte 99999, the file at 3728 (at byte 16)"),
    (24, "Q", 99999, "truncated: the segment area ends at byte {end}, the file at 3728 (at byte 24)"),
    (32, "Q", 1 << 63, "truncated: the segment area ends at byte {end}, the file at 3728 (at byte 24)"),
]


@pytest.mark.parametrize(("at", "code", "number", "message"), HEADERS)
def test_a_bad_header_is_refused(at: int, code: str, number: int, message: str) -> None:
    content = bytearray((DATA / "mlp.pte").read_bytes())
    struct.pack_into(f"<{code}", content, at, number)
    base, size = struct.unpack_from("<QQ", content, 24)
    with pytest.raises(InvalidProgram) as caught:
        read_program(content)
    assert str(caught.value) == message.format(end=base + size)


def test_a_file_that_ends_in_its_header_is_refused() -> None:
    with pytest.raises(InvalidProgram) as caught:
        read_program((DATA / "mlp.pte").read_bytes()[:39])
    assert str(caught.value) == "truncated: the file ends in its header, after 39 bytes (at byte 8)"
