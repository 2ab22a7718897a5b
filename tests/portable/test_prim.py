"""Scalar arithmetic against the operators that ExecuTorch registers for export."""

from __future__ import annotations

import re
from typing import Any

import executorch.exir.passes.executorch_prim_ops_registry  # noqa: F401  (registers executorch_prim)
import numpy as np
import pytest
import torch
from executorch.extension.pybindings.portable_lib import _get_operator_names
from tests.portable.harness import BIG

from ptegpu.errors import ExecutionError, ShapeError
from ptegpu.graph.names import functional
from ptegpu.portable import PRIMS

PAIRS = [(7, 2), (-7, 2), (7, -2), (BIG, 3), (2.5, 2), (0, 5), (3, 3)]
X = np.arange(24).reshape(2, 3, 4)


def scalar(name: str, *args: Any) -> Any:
    return PRIMS[f"executorch_prim.{name}.Scalar"](*args)


def same(expected: Any, actual: Any) -> bool:
    return type(expected) is type(actual) and expected == actual


def test_every_primitive_of_the_runtime_is_there() -> None:
    names = [n for n in _get_operator_names() if re.match(r"executorch_prim::|aten::(sym_|_local)", n)]
    assert len(names) > 20
    assert [n for n in names if functional(n) not in PRIMS] == []


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "floordiv", "truediv", "gt", "lt", "ge", "le", "eq", "sym_max", "sym_min"]
)
@pytest.mark.parametrize("pair", PAIRS)
def test_binary(name: str, pair: tuple[Any, Any]) -> None:
    expected = getattr(torch.ops.executorch_prim, name).Scalar(*pair)
    assert same(expected, scalar(name, *pair))


@pytest.mark.parametrize(("a", "b", "expected"), [(7, 3, 1), (-7, 3, 2), (7, -3, -2), (BIG, 10, 9)])
def test_mod(a: int, b: int, expected: int) -> None:
    assert expected == scalar("mod", a, b) == PRIMS["executorch_prim.mod.int"](a, b)


@pytest.mark.parametrize("name", ["neg", "ceil", "round", "trunc", "sym_float", "sym_int", "sym_not"])
@pytest.mark.parametrize("value", [0.5, 1.5, 2.5, -0.5, -2.7, 3, 0])
def test_unary(name: str, value: float) -> None:
    assert same(getattr(torch.ops.executorch_prim, name).Scalar(value), scalar(name, value))


def test_choice() -> None:
    assert scalar("sym_ite", True, 3, 4.5) == 3
    assert scalar("sym_ite", 0, 3, 4.5) == 4.5


@pytest.mark.parametrize("name", ["floordiv", "truediv", "mod"])
def test_division_by_zero(name: str) -> None:
    with pytest.raises(ExecutionError, match=r"^division of 4 by zero$"):
        scalar(name, 4, 0)


def test_no_integer() -> None:
    with pytest.raises(ExecutionError, match=r"^inf is not an integer$"):
        scalar("ceil", float("inf"))


def test_sizes() -> None:
    assert [PRIMS["aten.sym_size.int"](X, d) for d in (0, 1, -1)] == [2, 3, 4]
    assert [PRIMS["aten.sym_stride.int"](X, d) for d in (0, 1, -1)] == [12, 4, 1]
    assert PRIMS["aten.sym_numel.default"](X) == 24
    with pytest.raises(ExecutionError, match=r"^dimension 3 is out of range for rank 3$"):
        PRIMS["aten.sym_size.int"](X, 3)


@pytest.mark.parametrize("value", [BIG, 2.5, True])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_item(value: Any, shape: tuple[int, ...]) -> None:
    assert same(value, PRIMS["aten._local_scalar_dense.default"](np.full(shape, value)))


def test_item_of_many() -> None:
    with pytest.raises(ExecutionError, match=r"^a tensor of sizes \[2, 3, 4\] is not one item$"):
        PRIMS["aten._local_scalar_dense.default"](X)


def test_view() -> None:
    et_view = PRIMS["executorch_prim.et_view.default"]
    assert et_view(X, [4, -1]).shape == (4, 6)
    assert np.shares_memory(X, et_view(X, [24]))
    with pytest.raises(ShapeError, match=r"^a tensor of sizes \[2, 3, 4\] cannot be viewed as \[5, -1\]$"):
        et_view(X, [5, -1])


def test_copy_index_collects_rows() -> None:
    copy_index = PRIMS["executorch_prim.et_copy_index.tensor"]
    rows = np.zeros((0, 3), np.int64)
    for k in range(3):
        rows = copy_index(rows, np.full(3, BIG + k), k)
    np.testing.assert_array_equal(rows, [[BIG] * 3, [BIG + 1] * 3, [BIG + 2] * 3])
    before = rows.copy()
    np.testing.assert_array_equal(copy_index(rows, np.zeros(3, np.int64), 1)[1], [0, 0, 0])
    np.testing.assert_array_equal(rows, before)
    with pytest.raises(ShapeError, match=r"^sizes \[4\] cannot be row 1 of sizes \[3, 3\]$"):
        copy_index(rows, np.zeros(4), 1)
