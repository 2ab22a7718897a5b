"""Inputs out of what the command line says."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import typer

from ptegpu.cli.inputs import Fill, Random, make_inputs, parse_shapes, parse_source, read_arrays
from ptegpu.dtypes import DType
from ptegpu.errors import InvalidInput
from ptegpu.format import FileTensor

X = FileTensor(DType.F32, (2, 3), (0, 1))
IDS = FileTensor(DType.I64, (1, 16), (0, 1), dynamic=True)
MASK = FileTensor(DType.BOOL, (4,), (0,))
HALF = FileTensor(DType.BF16, (3,), (0,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("random", Random()),
        ("random:7", Random(7)),
        ("random:-1..1.5", Random(0, (-1.0, 1.5))),
        ("random:7:0..99", Random(7, (0.0, 99.0))),
        ("ones", Fill(1.0)),
        ("zeros", Fill(0.0)),
        ("-2.5e1", Fill(-25.0)),
        ("some/file.npy", Path("some/file.npy")),
        ("FILE.NPZ", Path("FILE.NPZ")),
    ],
)
def test_sources(text: str, expected: object) -> None:
    assert expected == parse_source(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "foo",
            "'foo' is not one of random, random:SEED, random:LOW..HIGH, random:SEED:LOW..HIGH, ones, zeros, a number, "
            "FILE.npy or FILE.npz",
        ),
        ("random:3..1", "'random:3..1': the range is empty"),
    ],
)
def test_bad_sources(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter) as raised:
        parse_source(text)
    assert raised.value.message == message


def test_shapes() -> None:
    assert parse_shapes(["1=1x17", "0=", "2=5,6×7"], 3) == {1: (1, 17), 0: (), 2: (5, 6, 7)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1x17", "'1x17' is not of the form 0=1x17"),
        ("2=1", "'2=1': the method has 2 inputs, counted from 0"),
    ],
)
def test_bad_shapes(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter) as raised:
        parse_shapes([text], 2)
    assert raised.value.message == message


def test_a_single_int_is_0_by_default() -> None:
    position, index = FileTensor(DType.I64, (1,), (0,)), FileTensor(DType.I32, (), ())
    assert [0, 0] == [x.item() for x in make_inputs([position, index], [], {})]
    assert 5 == make_inputs([position], ["5"], {})[0].item()
    assert make_inputs([position], ["random:8..9"], {})[0] in (8, 9)


def test_random_is_the_default_and_repeatable() -> None:
    first, again = make_inputs([X, IDS, MASK], [], {1: (1, 5)}), make_inputs([X, IDS, MASK], ["random:0"], {1: (1, 5)})
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    x, ids, mask = first
    assert (x.dtype, x.shape) == (np.float32, (2, 3))
    assert (ids.dtype, ids.shape) == (np.int64, (1, 5))
    assert 0 <= ids.min() <= ids.max() <= 9
    assert (mask.dtype, mask.shape) == (np.bool_, (4,))


def test_inputs_of_one_seed_differ() -> None:
    a, b = make_inputs([X, X], ["random:3"], {})
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, make_inputs([X], ["random:4"], {})[0])


def test_a_range_holds_for_ints_and_floats() -> None:
    ints, floats = make_inputs([IDS, FileTensor(DType.F32, (1000,), (0,))], ["random:100..103"], {})
    assert set(ints.reshape(-1).tolist()) <= {100, 101, 102, 103}
    assert floats.min() >= 100
    assert floats.max() < 103


def test_dynamic_inputs_are_at_their_maximum_unless_told() -> None:
    (ids,) = make_inputs([IDS], ["ones"], {})
    assert ids.shape == (1, 16)


def test_scalars_keep_the_value_they_were_exported_with() -> None:
    assert make_inputs([2.5, "tanh", None], ["7", "random", "4"], {}) == [7, "tanh", 4]
    assert make_inputs([2.5, True], ["random"], {}) == [2.5, True]
    assert isinstance(make_inputs([None], [], {})[0], int)


def test_bfloat16_is_made_from_float32(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1.0, -2.0, 0.5], np.float32))
    (bits,) = make_inputs([HALF], [str(tmp_path / "x.npy")], {})
    assert bits.tolist() == [0x3F80, 0xC000, 0x3F00]


def test_files(tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(16)[None]
    np.save(tmp_path / "a.npy", a)
    np.savez(tmp_path / "by_order.npz", a, b)
    np.savez(tmp_path / "by_name.npz", input1=b, input0=a)
    np.savez(tmp_path / "any.npz", x=a, ids=b)
    for texts in (["by_order.npz"], ["by_name.npz"], ["any.npz"]):
        arrays = make_inputs([X, IDS], [str(tmp_path / t) for t in texts], {})
        np.testing.assert_array_equal(arrays[0], a)
        np.testing.assert_array_equal(arrays[1], b)
    arrays = make_inputs([X, IDS], [str(tmp_path / "a.npy"), "zeros"], {})
    np.testing.assert_array_equal(arrays[0], a)
    assert not arrays[1].any()


def test_wrong_counts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as raised:
        make_inputs([X, X, X], ["ones", "ones"], {})
    assert str(raised.value) == "the method has 3 inputs, but --input is given 2 times"
    np.savez(tmp_path / "two.npz", 1, 2)
    with pytest.raises(InvalidInput) as raised:
        make_inputs([X, X, X], [str(tmp_path / "two.npz")], {})
    assert str(raised.value) == f"{tmp_path / 'two.npz'} holds 2 arrays, the method has 3 inputs"


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"no array at all")
    with pytest.raises(InvalidInput) as raised:
        read_arrays(tmp_path / "x.npy", "input", 1)
    assert f"{tmp_path / 'x.npy'} is not a NumPy file of plain arrays: it does not begin as one" == str(raised.value)


def test_an_input_without_bounds_needs_a_shape() -> None:
    unbounded = FileTensor(DType.F32, (0,), (0,), dynamic=True, bounded=False)
    with pytest.raises(InvalidInput) as raised:
        make_inputs([unbounded], [], {})
    assert str(raised.value) == "input 0 has no bounds: give its shape with --shape 0=…"
    assert make_inputs([unbounded], [], {0: (5,)})[0].shape == (5,)


def test_arrays_that_are_larger_than_the_method_takes_are_not_read(tmp_path: Path) -> None:
    """64 MiB of zeros in a file of 64 KiB, for an input of 24 bytes."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, np.zeros(1 << 23))
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    try:
        for inputs in ([X], [X, X]):
            with pytest.raises(InvalidInput, match=r"bomb\.npz|holds 1 arrays"):
                make_inputs(inputs, [str(path)], {})
        with pytest.raises(InvalidInput) as raised:
            read_arrays(path, "output", 1, most=1000)
        assert f"{path} holds arrays of 67,108,864 bytes, more than the 1,000 expected here" == str(raised.value)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:  # a head that says less than there is
        file.writestr("arr_0.npy", npy(np.zeros(4)) + bytes(1 << 26))
    assert 1 == len(read_arrays(path, "output", 1, most=1000))


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_archive_that_numpy_would_not_write_is_not_unpacked(tmp_path: Path, compression: int) -> None:
    """16 MiB in some KB: these methods unpack everything for the first bytes."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("arr_0.npy", npy(np.zeros(1 << 21)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput) as error:
            read_arrays(path, "output", 1, most=1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    why = "arr_0.npy is compressed in another way than NumPy does"
    assert f"{path} is not a NumPy file of plain arrays: {why}" == str(error.value)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
