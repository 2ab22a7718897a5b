"""Experts: float, 8-bit and 4-bit weights, one row per token or one per expert of a token, split weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import PtegpuError
from ptegpu.plan.target import Target

F16, F32, I32, U8, I8 = DType.F16, DType.F32, DType.I32, DType.U8, DType.I8


def products(x, weight, experts, count):
    """Multiply each row by its experts' matrices in weight (count · N, K)."""
    chosen = weight.to(x.dtype).reshape(count, -1, x.shape[-1])[experts.clamp(0, count - 1).long()]  # (S, A, N, K)
    return torch.einsum("sak,sank->san", x.unsqueeze(1).expand(*experts.shape, -1) if x.dim() == 2 else x, chosen)


def of_bytes(x, weight, scales, experts, count):
    return products(x, weight.to(x.dtype) * scales.to(x.dtype).unsqueeze(1), experts, count)


def of_halves(x, weight, scales, group, experts, count):
    values = torch.stack((weight & 15, weight >> 4), -1).reshape(len(weight), -1).to(x.dtype) - 8
    return products(x, values * scales.T.to(x.dtype).repeat_interleave(group, 1), experts, count)


def floats(tokens, each, count, n, k, *, own=False, dtype=F32, weight=None, experts=None):
    x = T((tokens, each, k) if own else (tokens, k), dtype)
    chosen = experts or T((tokens, each), I32, 0, count)
    args = (x, T((count * n, k), weight or dtype, constant=True), chosen, count)
    return Case("ptegpu.linear_experts.default", args, products)


def q8(tokens, each, count, n, k, *, own=False, dtype=F32):
    x = T((tokens, each, k) if own else (tokens, k), dtype)
    weight, scales = T((count * n, k), I8, -128, 128, constant=True), T((count * n,), F32, 0.01, 0.02, constant=True)
    return Case(
        "ptegpu.linear_experts_q8.default", (x, weight, scales, T((tokens, each), I32, 0, count), count), of_bytes
    )


def q4(tokens, each, count, n, k, group=32, *, own=False, dtype=F32, experts=None):
    x = T((tokens, each, k) if own else (tokens, k), dtype)
    weight = T((count * n, k // 2), U8, 0, 256, constant=True)
    scales = T((k // group, count * n), F32, 0.1, 0.2, constant=True)
    chosen = experts or T((tokens, each), I32, 0, count)
    return Case("ptegpu.linear_experts_q4.default", (x, weight, scales, group, chosen, count), of_halves)


def top(tokens, count, k, dtype=F32):
    return Case("ptegpu.top_experts.default", (T((tokens, count), dtype), k), lambda x, k: torch.topk(x, k))


CASES = [
    top(5, 8, 2),
    top(1, 60, 4),
    top(3, 7, 7, F16),
    floats(1, 2, 4, 8, 32),
    floats(5, 2, 3, 6, 20),
    floats(5, 2, 3, 7, 21),
    floats(3, 2, 3, 5, 600, own=True),
    floats(3, 1, 1, 1, 1),
    floats(0, 2, 3, 8, 32),
    floats(4, 3, 5, 9, 36, dtype=F16),
    floats(4, 3, 5, 9, 36, weight=F16),
    q8(5, 2, 3, 6, 20),
    q8(1, 2, 3, 5, 600, own=True),
    q8(4, 2, 3, 6, 64, dtype=F16),
    q4(1, 2, 4, 8, 64),
    q4(5, 2, 3, 6, 96),
    q4(3, 2, 3, 5, 1024, 128, own=True),
    q4(3, 2, 3, 5, 40, 8),
    q4(4, 3, 5, 9, 64, dtype=F16),
    Case(
        "ptegpu.linear_experts.default",
        (T((3, 8), limit=(7, 8)), T((12, 8), constant=True), T((3, 2), I32, 0, 4, limit=(7, 2)), 4),
        products,
        note=" below its maximum",
    ),
]
BROWSER = CASES[1::3]


FAR = T((3, 2), I32, values=(-1, -(2**31), 50, 3, 2**31 - 1, 0))


@pytest.mark.parametrize("case", [floats(3, 2, 4, 8, 32, experts=FAR), q4(3, 2, 4, 8, 32, experts=FAR)], ids=str)
def test_experts_outside_the_table_are_clamped(case):
    check(case)


@pytest.mark.parametrize("case", [floats(2, 2, 6, 10, 64), q8(2, 2, 6, 10, 64), q4(2, 2, 6, 10, 64)], ids=str)
def test_weights_in_parts(case):
    """The limit splits the weights within an expert."""
    check(case, max_binding_bytes=1024)


REFUSED = [
    (
        "linear_experts",
        (T((3, 8)), T((12, 8)), T((2, 2), I32), 4),
        "experts of shape [2, 2] do not fit x of shape [3, 8]",
    ),
    (
        "linear_experts",
        (T((3, 8)), T((12, 8)), T((3, 2), I32), 5),
        "a weight of shape [12, 8] does not fit 5 experts and x [3, 8]",
    ),
    ("linear_experts_q8", (T((3, 6)), T((4, 6), I8), T((4,)), T((3, 2), I32), 2), "rows of 6 are not a multiple of 4"),
    (
        "linear_experts_q4",
        (T((3, 32)), T((4, 16), U8), T((2, 4)), 32, T((3, 2), I32), 2),
        "scales of shape [2, 4] do not fit rows of 32 in groups of 32",
    ),
]


@pytest.mark.parametrize("name, args, message", REFUSED)
def test_refused(name, args, message):
    case = Case(f"ptegpu.{name}.default", args)
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((2, 8), np.float32)])
    with pytest.raises(PtegpuError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"{case.op}: {message}"
