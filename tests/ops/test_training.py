"""Operators of training on the device, against references in PyTorch and the wheel's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import PtegpuError
from ptegpu.ops import matmul
from ptegpu.plan.target import Target

F32, F16, U8, I32 = DType.F32, DType.F16, DType.U8, DType.I32


def weight_gradient(d_out, x):
    return torch.einsum("mn,mk->nk", d_out.reshape(-1, d_out.shape[-1]), x.reshape(-1, x.shape[-1]))


def dw(lead, n, k, dtype=F32, limit=None):
    d_out = T((*lead, n), dtype, limit=(*limit, n) if limit else None)
    return Case(
        "et_vk.linear_dW.default", (d_out, T((*lead, k), dtype, limit=(*limit, k) if limit else None)), weight_gradient
    )


WEIGHT_GRADIENTS = [
    dw((), 5, 7),
    dw((1,), 8, 4),
    dw((2, 3), 5, 9),
    dw((40,), 36, 20),
    dw((17,), 3, 35),
    dw((17,), 35, 1),
    dw((9,), 1, 8),
    dw((2, 2, 300), 6, 10),  # in parts of the rows
    dw((0,), 4, 3),
    dw((6,), 12, 8, F16),
    dw((13,), 5, 3, F16),
]


CASES = [*WEIGHT_GRADIENTS]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    check(case)


@pytest.mark.parametrize(
    "case",
    [*WEIGHT_GRADIENTS[3::4]],
    ids=str,
)
def test_in_a_browser_without_features(case):
    check(case, f16=False, subgroups=False, limits="browser")


@pytest.mark.parametrize("case", [dw((40,), 130, 70)], ids=str)
def test_larger_tiles(case, monkeypatch):
    monkeypatch.setattr(matmul, "BUSY", 1)
    check(case)


@pytest.mark.parametrize("s", [0, 1, 5, 17])
def test_live_rows(s):
    check(dw((s,), 6, 9, limit=(17,)))


WHEEL = [(weight_gradient, "linear_dW", (torch.randn(2, 3, 5), torch.randn(2, 3, 7)))]


@pytest.mark.parametrize("reference, name, args", WHEEL, ids=lambda a: a if isinstance(a, str) else "")
def test_references_are_those_of_the_wheel(reference, name, args):
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401

    def fresh():
        return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]

    torch.testing.assert_close(reference(*fresh()), getattr(torch.ops.et_vk, name)(*fresh()))


REFUSED = [
    (dw((), 4, 4), 0, T(()), "d_out and x must have at least one dimension"),
    (dw((3,), 4, 5), 1, T((2, 5)), "d_out [3, 4] and x [2, 5] must have as many rows"),
]


@pytest.mark.parametrize("case, position, wrong, message", REFUSED, ids=str)
def test_refused(case, position, wrong, message):
    args = (*case.args[:position], wrong, *case.args[position + 1 :])
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in args if isinstance(a, T)}
    count = {"et_vk.fused_ce.default": 2, "et_vk.adamw_step.default": 3}.get(case.op, 1)
    graph, _ = graph_of(Case(case.op, args), arrays, [np.zeros((4,), np.float32)] * count)
    with pytest.raises(PtegpuError) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"
