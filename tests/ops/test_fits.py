"""Declarations of operand dtypes and sizes: their syntax and the tensors they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from ptegpu.dtypes import ON_GPU, DType
from ptegpu.errors import InvalidProgram, PtegpuError, ShapeError
from ptegpu.graph.graph import Tensor
from ptegpu.ops.fits import parsed
from ptegpu.ops.registry import REGISTRY

F32, I32, I8, BOOL = DType.F32, DType.I32, DType.I8, DType.BOOL


def t(*shape: int, dtype: DType = F32) -> Tensor:
    return Tensor("t", dtype, shape)


def problem(text: str, **values: Any) -> str:
    fits = parsed(text, list(values))
    try:
        fits.check_dtypes(values)
        fits.check_sizes(values)
    except PtegpuError as e:
        assert isinstance(e, InvalidProgram if "[" not in str(e).split("must be")[1] else ShapeError)
        return str(e)
    return ""


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("x float", {"x": t(2), "y": t(3)}, ""),
        ("x float", {"x": t(2), "y": t(3, dtype=I32)}, "'y' is t:int32[3], but must be float32 or float16"),
        ("x float, y int", {"x": t(2), "y": t(3, dtype=I8)}, ""),
        ("x float, y int8|bool", {"x": t(), "y": t(dtype=I32)}, "'y' is t:int32[], but must be int8 or bool"),
        ("x number, y x", {"x": t(dtype=I8), "y": t(dtype=I32)}, ""),
        ("x any, y x", {"x": t(dtype=BOOL), "y": t(dtype=I32)}, "'y' is t:int32[], but must be bool"),
        ("x float[n, c, ...], y [c]", {"x": t(2, 3, 4, 5), "y": t(3)}, ""),
        ("x float[n, c, ...], y [c]", {"x": t(2, 3), "y": None}, ""),
        ("x float[n, c, ...], y [c]", {"x": t(2), "y": t(3)}, "'x' is t:float32[2], but must be [n, c, ...]"),
        (
            "x float[n, c, ...], y [c]",
            {"x": t(2, 3), "y": t(4)},
            "'y' is t:float32[4], but must be [c] where n = 2, c = 3",
        ),
        ("x float[..., 2, k], y [>=k]", {"x": t(7, 2, 3), "y": t(4)}, ""),
        ("x float[..., 2, k]", {"x": t(1, 3)}, "'x' is t:float32[1, 3], but must be [..., 2, k]"),
        ("x float[k], y [>=k]", {"x": t(3), "y": t(2)}, "'y' is t:float32[2], but must be [>=k] where k = 3"),
        ("x float[_]", {"x": [t(3), t(2, 2)]}, "'x' is t:float32[2, 2], but must be [_]"),
    ],
)
def test_tensors_fit(text: str, values: dict[str, Any], message: str) -> None:
    assert message == problem(text, **values)


@pytest.mark.parametrize(
    ("text", "place", "dtype", "message"),
    [
        ("x float", 1, DType.F16, ""),
        ("x float", 0, I32, "the result is float32 or float16, the program says int32"),
        ("x float -> x, int", 0, F32, ""),
        ("x float -> float, int32", 2, I8, "the result is int32, the program says int8"),
    ],
)
def test_results_fit(text: str, place: int, dtype: DType, message: str) -> None:
    actual = ""
    try:
        parsed(text, ["x"]).check_result(place, t(dtype=dtype), {"x": t()})
    except InvalidProgram as e:
        actual = str(e)
    assert message == actual


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y float", "fits='y float' must begin with 'x', and name tensors in this order: ['x', 'y']"),
        ("x float, z", "fits='x float, z' must begin with 'x', and name tensors in this order: ['x', 'y']"),
        ("x floats", "fits='x floats': unknown dtype or tensor 'floats'"),
        ("x float[n+1]", "fits='x float[n+1]': invalid size 'n+1'"),
        ("x float [", "fits='x float [': cannot read 'x float ['"),
    ],
)
def test_nonsense_is_refused_where_an_operator_is_registered(text: str, message: str) -> None:
    with pytest.raises(TypeError) as error:
        parsed(text, ["x", "y"])
    assert message == str(error.value)


def test_the_first_tensor_decides_where_a_call_runs() -> None:
    assert (DType.F32, DType.F16) == REGISTRY["aten._softmax.default"].dtypes
    assert ON_GPU == REGISTRY["aten.softmax.int"].dtypes
    assert () == REGISTRY["aten.add.Tensor"].dtypes
