"""Data files: tensors and delegate constants by name."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.format.build import Field, Table, Tables, Vector, data_file, i8, table, text, u32, u64

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram
from ptegpu.format import read_program
from ptegpu.format.delegate import read_delegate
from ptegpu.format.ptd import NamedTensor, read_data

DATA = Path(__file__).parent.parent / "data"


def test_a_tensor_with_its_layout() -> None:
    tensors = read_data(DATA / "dynamic-0.ptd")
    (period,) = tensors.values()
    assert list(tensors) == ["period"]
    assert (period.dtype, period.sizes, period.dim_order) == (DType.F32, (8,), (0,))
    np.testing.assert_allclose(np.frombuffer(period.data, "<f4"), np.linspace(0.5, 1.5, 8), rtol=1e-6)


def test_delegate_constants_have_bytes_only() -> None:
    tensors = read_data(DATA / "dynamic-1.ptd")
    (method,) = read_program(DATA / "dynamic.pte").methods
    graphs = [read_delegate(delegate.blob) for delegate in method.delegates]
    expected = {constant.key: constant.nbytes for graph in graphs for constant in graph.constants}
    assert {key: len(tensor.data) for key, tensor in tensors.items()} == expected
    assert {(tensor.dtype, tensor.sizes, tensor.dim_order) for tensor in tensors.values()} == {(None, None, None)}


def layout(*sizes: int) -> Table:
    return table(i8(6), Vector("i", list(sizes)), Vector("B", list(range(len(sizes)))))


def entry(key: str, segment: int, *more: Field) -> Table:
    return table(text(key), u32(segment), *more)


def of(*entries: Table, version: int = 0) -> Table:
    return table(u32(version), Tables([table(u64(0), u64(16)), table(u64(16), u64(4))]), Tables(list(entries)))


TWENTY = bytes(range(20))


def test_a_tensor_has_exactly_its_bytes() -> None:
    tensors = read_data(data_file(of(entry("a", 0, layout(3)), entry("b", 1)), TWENTY))
    assert dict(tensors) == {
        "a": NamedTensor(memoryview(TWENTY[:12]), DType.F32, (3,), (0,)),
        "b": NamedTensor(memoryview(TWENTY[16:])),
    }


REFUSED = [
    (of(entry("a", 2)), "segment 2 does not exist: there are 2"),
    (of(entry("a", 0), entry("a", 1)), "two named data have the key 'a'"),
    (of(table()), "the key of named data is missing"),
    (of(entry("a", 1, layout(2))), "'a' holds 4 bytes, its layout needs 8"),
    (of(entry("a", 1, layout(-2))), "tensor sizes [-2] are negative"),
    (of(version=1), "data format version 1 is newer than 0"),
]


@pytest.mark.parametrize(("root", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_bad_data_file_is_refused_with_the_reason(root: Table, reason: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        read_data(data_file(root, TWENTY))
    assert caught.value.reason == reason
    assert caught.value.offset is not None


HEADERS = [
    (8, "I", 0, "the data file has no header (at byte 8)"),
    (12, "I", 39, "a header of 39 bytes is too short (at byte 12)"),
    (24, "Q", 99999, "truncated: the table area ends at byte 100047, the file at {size} (at byte 16)"),
    (40, "Q", 99999, "truncated: the segment area ends at byte {end}, the file at {size} (at byte 32)"),
]


@pytest.mark.parametrize(("at", "code", "number", "message"), HEADERS)
def test_a_bad_header_is_refused(at: int, code: str, number: int, message: str) -> None:
    content = bytearray(data_file(of(), TWENTY))
    struct.pack_into(f"<{code}", content, at, number)
    with pytest.raises(InvalidProgram) as caught:
        read_data(content)
    assert str(caught.value) == message.format(size=len(content), end=len(content) - 20 + 99999)


def test_a_foreign_file_is_named() -> None:
    with pytest.raises(InvalidProgram) as caught:
        read_data(DATA / "mlp.pte", name="mlp.pte")
    message = "mlp.pte: not an ExecuTorch data file (.ptd): this looks like an ExecuTorch program (.pte) (at byte 0)"
    assert str(caught.value) == message
