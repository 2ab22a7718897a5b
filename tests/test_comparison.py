"""Comparisons of results: every case of an operator refuses results that are scaled by 1.05, zeroed or shifted.

Changes without effect are counted below: a case that adds to them tests a little less than it could.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from ptegpu.dtypes import DType
from tests.cases import ATOL, close, compare, tables
from tests.changes import CHANGES, Tried, change_all
from tests.oracle import problem

NAN, INF = np.nan, np.inf

# Numbers of results that a change leaves unchanged, over all cases.
LEFT_AS_THEY_ARE = {
    "scaled": {"bools": 215, "empty": 165, "not finite": 34, "small ints": 391, "zeros": 122},
    "zeroed": {"empty": 165, "zeros": 122},
    "shifted": {"empty": 165, "equal elements": 111, "one element": 165, "zeros": 122},
}
# Operators whose cases can never refuse a change, by their results.
ZEROS = {"zeros.default", "zeros_like.default", "empty.memory_format", "empty_like.default"}
TRUTH = {
    *(f"{name}.{of}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for of in ("Scalar", "Tensor")),
    *(f"logical_{name}.default" for name in ("and", "or", "xor", "not")),
    *(f"{name}.{of}" for name in ("any", "all") for of in ("default", "dim", "dims")),
    *("isnan.default", "isinf.default"),
}
ONE_ELEMENT = {
    *(f"{name}.default" for name in ("any", "all", "dot", "max", "min", "mean", "prod", "std", "sum", "var")),
    "scalar_tensor.default",
}
ONE_VALUE = {f"{name}.default" for name in ("full", "full_like", "ones", "ones_like")} | {"fill.Scalar", "fill.Tensor"}
NEVER_REFUSED = {
    "scaled": {f"aten.{name}" for name in ZEROS | TRUTH},
    "zeroed": {f"aten.{name}" for name in ZEROS},
    "shifted": {
        "quantized_decomposed.choose_qparams.tensor",  # one scale and one zero point
        *(f"aten.{name}" for name in ZEROS | ONE_ELEMENT | ONE_VALUE),
    },
}


def test_every_case_refuses_changed_results() -> None:
    outcomes, refused = Tried(), defaultdict[str, set[str]](set)
    for case in tables():
        reference = problem(case)
        tried = change_all(reference.right, reference.compare)
        outcomes.unchanged += tried.unchanged
        outcomes.accepted += [f"{case}: {what}" for what in tried.accepted]
        refused[case.op] |= tried.refused
    assert [] == outcomes.accepted
    assert outcomes.table == LEFT_AS_THEY_ARE, f"LEFT_AS_THEY_ARE = {outcomes.table}"
    never = {change: {op for op in refused if change not in refused[op]} for change in CHANGES}
    assert never == NEVER_REFUSED


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_tolerance_is_a_share_of_the_largest(scale: float) -> None:
    want = np.array([0.0, 1e-9, -1.0, 0.5]) * scale
    for error, right in ((0.9 * ATOL[DType.F32], True), (1.1 * ATOL[DType.F32], False)):
        got = want + np.array([error * scale, 0, 0, 0])
        if right:
            compare(got, want, ATOL[DType.F32], "it")
        else:
            with pytest.raises(AssertionError, match="it: error"):
                compare(got, want, ATOL[DType.F32], "it")


@pytest.mark.parametrize(
    ("got", "want", "message"),
    [
        ([1e-30, 0.0], [0.0, 0.0], "it: error 1e-30 at scale 0"),
        ([1.0, NAN], [1.0, 2.0], "it: NaN"),
        ([1.0, 2.0], [1.0, NAN], "it: NaN"),
        ([1.0, INF], [1.0, 2.0], "it: error inf at scale 2"),
        ([1.0, 2.0], [1.0, INF], "it: inf"),
        ([1.0, -INF], [1.0, INF], "it: inf"),
    ],
)
def test_what_is_refused_at_any_tolerance(got: list[float], want: list[float], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        compare(np.array(got), np.array(want), 0.1, "it")


def test_what_is_equal() -> None:
    for values in ([], [0.0, -0.0], [NAN, INF, -INF], [1.0, NAN, INF]):
        compare(np.array(values), np.array(values), 0.0, "it")


def test_close_is_of_one_shape_and_dtype() -> None:
    x = np.array([1.0, 2.0, 1000.0], np.float32)
    close(x + np.float32(1e-3), x)
    for other in (x + np.float32(0.1), x[None], x.astype(np.float64), x[:2]):
        with pytest.raises(AssertionError):
            close(other, x)
    with pytest.raises(AssertionError):  # ints are exact
        close(np.array([1, 2**40 + 1]), np.array([1, 2**40]))
