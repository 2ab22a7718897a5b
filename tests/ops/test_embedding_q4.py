"""Embedding in 4 bits: both nibble orders, scales per group, per row and shared, zero points, split tables."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import PtegpuError
from ptegpu.plan.target import Target

F16, I32, U8 = DType.F16, DType.I32, DType.U8


def rows(weight, scales, zeros, indices, high_first):
    halves = (weight >> 4, weight & 15) if high_first else (weight & 15, weight >> 4)
    values = torch.stack(halves, -1).reshape(len(weight), -1).to(scales.dtype) - 8
    scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
    group = values.shape[1] // scales.shape[1]
    if zeros is not None:
        values = values - zeros.reshape(len(zeros), -1).repeat_interleave(group, 1).to(scales.dtype)
    return (values * scales.repeat_interleave(group, 1))[indices.clamp(0, len(weight) - 1).long()]


def gsw(weight, scales, group, indices, linear=False):
    return rows(
        weight, scales if scales.shape[0] in (1, len(weight)) else scales.T[: len(weight)], None, indices, not linear
    )


def four_bit(weight, scales, zeros, low, high, indices, dtype=None):
    return rows(weight, scales, zeros, indices, True)


def q4gsw(total, width, group, indices, linear=True, scales=DType.F32):
    return Case(
        "et_vk.embedding_q4gsw.default",
        (
            T((total, width // 2), U8, 0, 256, constant=True),
            T((total, width // group), scales, 0.1, 1, constant=True),
            group,
            indices,
            linear,
        ),
        gsw,
    )


def of(*shape: int, below: int) -> T:
    return T(shape, I32, 0, below)


def bits(total, width, groups, indices, *, zeros=None, scales=DType.F32, kind="dtype"):
    shape = (total, groups) if groups else (total,)
    weight = T((total, width // 2), U8, 0, 256, constant=True)
    zero = T(shape, zeros, -3, 4, constant=True) if zeros else None
    args = (weight, T(shape, scales, 0.1, 1, constant=True), zero, -8, 7, indices, *([None] if kind == "dtype" else []))
    return Case(f"quantized_decomposed.embedding_4bit.{kind}", args, four_bit)


CASES = [
    q4gsw(11, 32, 32, of(5, below=11)),
    q4gsw(11, 64, 32, of(2, 3, below=11)),
    q4gsw(11, 64, 16, of(2, 70, below=11), linear=False),
    q4gsw(300, 32, 8, of(below=300)),
    q4gsw(9, 6, 3, of(7, below=9)),
    q4gsw(9, 6, 2, of(7, below=9), linear=False),
    q4gsw(9, 2, 2, of(1, 2, 1, 3, below=9)),
    q4gsw(9, 32, 32, of(0, below=9)),
    q4gsw(9, 32, 16, of(3, 0, below=9)),
    q4gsw(11, 64, 32, of(5, below=11), scales=F16),
    q4gsw(11, 6, 3, of(5, below=11), scales=F16),
    Case("et_vk.embedding_q4gsw.default", (T((5, 16), U8, 0, 256), T((1,)), 32, of(3, below=5), True), gsw),
    bits(11, 32, 0, of(5, below=11)),
    bits(11, 32, 1, of(5, below=11), kind="default"),
    bits(11, 64, 2, of(2, 3, below=11), zeros=I32),
    bits(11, 64, 4, of(2, 3, below=11), zeros=DType.F32),
    bits(11, 10, 5, of(2, 3, below=11), zeros=DType.I8),
    bits(11, 12, 0, of(4, below=11), zeros=I32, scales=F16),
]
BROWSER = [*CASES[1::3], CASES[9]]


def test_scales_shared_with_a_linear_layer():
    """The exporter transposes and pads the scales of a layer whose weight is tied."""
    weight = T((11, 32), U8, 0, 256, constant=True)
    scales = T((2, 12), low=0.1, high=1, constant=True)
    check(Case("et_vk.embedding_q4gsw.default", (weight, scales, 32, of(5, below=11), True), gsw))


FAR = T((6,), I32, values=(-1, -(2**31), 50, 49, 2**31 - 1, 0))


def test_indices_outside_the_table_are_clamped():
    check(q4gsw(50, 32, 32, FAR))
    check(q4gsw(50, 32, 32, FAR), max_binding_bytes=768)


@pytest.mark.parametrize("f16", [True, False])
@pytest.mark.parametrize("width, group, scales", [(64, 32, DType.F32), (64, 2, DType.F32), (6, 2, F16)], ids=str)
def test_table_in_parts(width, group, scales, f16):
    """The limit is below the weight, and in the second case below the scales too, which split at other rows."""
    case = q4gsw(100, width, group, of(3, 3, below=100), scales=scales)
    limit = {64: 3 * 3 * 64 * 4, 6: 256}[width]
    assert limit < 100 * width // 2
    check(case, f16=f16, max_binding_bytes=limit)


def test_references_are_those_of_the_wheel():
    import executorch.backends.vulkan.custom_ops_lib
    import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401

    weight, scales = torch.randint(0, 256, (9, 16), dtype=torch.uint8), torch.rand(9, 4)
    indices, zeros = torch.tensor([[0, 8], [3, 3]]), torch.randint(-3, 4, (9, 4)).float()
    for linear in (False, True):
        theirs = torch.ops.et_vk.embedding_q4gsw(weight, scales, 8, indices, linear)
        torch.testing.assert_close(gsw(weight, scales, 8, indices, linear), theirs)
    theirs = torch.ops.quantized_decomposed.embedding_4bit(weight, scales, zeros, -8, 7, indices)
    torch.testing.assert_close(four_bit(weight, scales, zeros, -8, 7, indices), theirs)


weight = partial(T, dtype=U8)
REFUSED = [
    (weight((5, 4)), T((5, 1)), 8, T((2,)), "'indices' is arg2:float32[2], but must be int32 or int8 or uint8"),
    (weight((8,)), T((5, 1)), 8, of(2, below=5), "'weight' is arg0:uint8[8], but must be [v, _]"),
    (weight((0, 4)), T((0, 1)), 8, of(2, below=5), "the weight has no rows"),
    (
        weight((5, 4)),
        T((5, 1)),
        4,
        of(2, below=5),
        "scales of shape [5, 1] do not fit 5 rows of 8 in groups of 4",
    ),
]


@pytest.mark.parametrize("weight, scales, group, index, message", REFUSED, ids=str)
def test_refused(weight, scales, group, index, message):
    case = Case("et_vk.embedding_q4gsw.default", (weight, scales, group, index, True))
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in (weight, scales, index)}
    graph, _ = graph_of(case, arrays, [np.zeros((2, 8), np.float32)])
    with pytest.raises(PtegpuError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"{case.op}: {message}"
