"""Linear layers with packed weights: every packing of the exporter, every way to divide the work, dynamic rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.cases import ONE_UNIT
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.kernels.gemv import Gemv
from ptegpu.ops import packed_gemv
from ptegpu.plan.target import CLASSES, Target

F16, U8, I8 = DType.F16, DType.U8, DType.I8


def up(n: int, to: int) -> int:
    return -(-n // to) * to


def unpacked(weight: torch.Tensor, high_first: bool = False) -> torch.Tensor:
    """Return the (N, K) integers from -8 to 7 in (N, K / 2) bytes."""
    halves = (weight >> 4, weight & 15) if high_first else (weight & 15, weight >> 4)
    return torch.stack(halves, -1).reshape(len(weight), -1).to(torch.int32) - 8


def q4gsw(x, weight, scales, group, bias=None):
    n, k = len(weight), x.shape[-1]
    each = scales.T[:n].repeat_interleave(group, 1)[:, :k].to(x.dtype)
    y = x @ (unpacked(weight)[:, :k].to(x.dtype) * each).T
    return y if bias is None else y + bias[:n].to(x.dtype)


def qcs4w(x, weight, scales):
    """Multiply with offset 8, which ExecuTorch's own reference forgets."""
    return x @ (unpacked(weight, high_first=True)[:, : x.shape[-1]].to(x.dtype) * scales[:, None].to(x.dtype)).T


def int8pack(x, weight, scales):
    return x @ (weight.to(x.dtype) * scales[:, None].to(x.dtype)).T


def q4(lead, k, n, group, *, bias=False, dtype=DType.F32, packed=None, limit=None, scales=None):
    """Return a case padded like the packer's weights: K to 8, scales and bias to 4 columns."""
    columns = up(n, 4)
    return Case(
        "et_vk.linear_q4gsw.default",
        (
            T((*lead, k), dtype, limit=limit),
            T((n, packed or up(k, 8) // 2), U8, 0, 256, constant=True),
            T((-(-k // group), columns), scales or dtype, 0.01, 0.1, constant=True),
            group,
            T((columns,), dtype, constant=True) if bias else None,
        ),
        q4gsw,
    )


def c4(lead, k, n, dtype=DType.F32):
    weight = T((n, -(-k // 2)), U8, 0, 256, constant=True)
    return Case(
        "et_vk.linear_qcs4w.default", (T((*lead, k), dtype), weight, T((n,), dtype, 0.01, 0.1, constant=True)), qcs4w
    )


def c8(lead, k, n, dtype=DType.F32):
    weight, scales = T((n, k), I8, -128, 128, constant=True), T((n,), dtype, 0.001, 0.01, constant=True)
    return Case("aten._weight_int8pack_mm.default", (T((*lead, k), dtype), weight, scales), int8pack)


GEMV = [
    q4((), 64, 5, 32, bias=True),
    q4((1, 1), 256, 33, 64),
    q4((1,), 512, 20, 128, bias=True),
    q4((1,), 4128, 7, 32),  # several subgroups per row
    q4((1,), 64, 8195, 32),  # four rows of the weight per lane
    q4((1,), 40, 9, 8),
    q4((1,), 36, 10, 12, bias=True),  # K % 8 == 4: the packer pads it
    q4((1,), 4, 3, 4),
    q4((1,), 60, 6, 6),
    q4((1,), 63, 6, 9),
    q4((1,), 96, 6, 96),
    q4((1,), 96, 7, 48),
    q4((2,), 64, 9, 32, bias=True),
    q4((3,), 68, 9, 4),
    q4((2, 2), 160, 1, 32),
    *(q4((m,), 72, 18, 36, bias=m > 6) for m in (4, 5, 6, 7, 8)),
    q4((8,), 96, 9, 6),
    q4((1,), 30, 5, 10, packed=15),  # rows that do not fill their last word
    q4((1,), 64, 20, 32, dtype=F16, bias=True),
    q4((3,), 36, 9, 12, dtype=F16),
    q4((1,), 64, 8, 32, scales=F16),
]

GEMM = [
    q4((13,), 64, 36, 32, bias=True),
    q4((33,), 40, 35, 8),
    q4((2, 17), 96, 33, 96),
    q4((12,), 36, 9, 12),
    q4((12,), 63, 6, 9),
    q4((9,), 1024, 12, 32),  # split K
    q4((9,), 30, 5, 10, packed=15),
    q4((12,), 64, 20, 32, dtype=F16, bias=True),
]

PER_CHANNEL = [
    *(c4((m,), k, n) for m in (1, 3, 8, 12) for k, n in [(64, 8), (37, 7)]),
    c4((1,), 2, 3),
    c4((2, 1, 2), 70, 5),
    c4((12,), 40, 8, F16),
    *(c8((m,), k, n) for m in (1, 3, 8, 12) for k, n in [(64, 8), (37, 7)]),
    c8((1,), 1, 3),
    c8((2, 3), 70, 5),
    c8((1,), 40, 6, F16),
]

EMPTY = [q4((0,), 32, 8, 32), q4((2, 0), 32, 8, 32, bias=True), c8((0,), 8, 4), c4((3, 0), 8, 4)]

CASES = [*GEMV, *GEMM, *PER_CHANNEL, *EMPTY]

BENCHMARKS = [  # at real sizes
    *(q4((1,), k, n, 32) for k, n in [(2048, 2048), (2048, 8192), (8192, 2048), (2048, 128256), (4096, 14336)]),
    *(q4((m,), 2048, 8192, 32) for m in (2, 4, 8, 16, 32, 64, 512)),
    Case(
        "aten._weight_int8pack_mm.default",
        (T((1, 2048)), T((8192, 2048), I8, -127, 128, constant=True), T((8192,), low=0.01, high=0.1, constant=True)),
        int8pack,
    ),
]
BROWSER = [*GEMV[::3], GEMV[-3], GEMM[0], GEMM[3], GEMM[-1], *PER_CHANNEL[::5]]
SOFTWARE = [*GEMV[::3], *GEMM[::2], *PER_CHANNEL[::3]]


@pytest.mark.parametrize("case", [GEMV[3], GEMV[4], GEMM[0]], ids=str)
def test_workgroups_of_128(case):
    check(case, subgroups=False, max_invocations=128)


WAYS = [
    Gemv(rows=1, lanes=8, words=1, slots=4),
    Gemv(rows=2, lanes=16, words=2, slots=2),
    Gemv(rows=4, lanes=32, words=4, slots=8),
    Gemv(rows=8, lanes=8, words=4, slots=2, staged=True),
    Gemv(rows=1, lanes=256, words=1, staged=True),
    Gemv(rows=3, lanes=4, words=1, slots=5),
    Gemv(rows=4, lanes=8, words=4, slots=4, staged=True, digits=True),
    Gemv(rows=3, lanes=4, words=1, slots=2, staged=True, digits=True),
    Gemv(rows=2, lanes=8, words=4, slots=2, staged=True, digits=True),
]


@pytest.mark.parametrize("subgroups", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_to_share_out(way, subgroups, monkeypatch):
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(way),))
    check(q4((1,), 256, 21, 32, bias=True), subgroups=subgroups)
    check(q4((2,), 100, 12, 20), subgroups=subgroups)
    check(q4((1,), 64, 37, 32), subgroups=subgroups, device_class=ONE_UNIT)


STAYING = [
    *(q4((1,), k, n, group) for k, n, group in [(64, 37, 32), (100, 12, 20), (96, 200, 96), (4128, 9, 32)]),
    q4((1,), 256, 21, 32, bias=True),
    c8((1,), 80, 30),
]


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
@pytest.mark.parametrize("resident", [1, 3])
@pytest.mark.parametrize("case", STAYING, ids=str)
def test_workgroups_that_stay(case, resident, kept_bytes):
    check(case, resident=resident, kept_bytes=kept_bytes, precision="exact")


def test_workgroups_that_stay_compute_many_columns_in_a_dispatch_of_their_own():
    check(q4((1,), 64, packed_gemv.WALKED + 5, 32), device_class=CLASSES["discrete"])


def test_two_digits_are_as_accurate_as_f16():
    """They have 14 bits of the largest element of each block. A wrong one would be off by 1/128."""
    check(replace(q4((1,), 256, 21, 32), atol=2e-4), resident=1, precision="auto")


@pytest.mark.parametrize("k, n", [(32, 8200), (4096, 3)])
def test_sums_of_eight_rows_fit_into_the_memory_of_browsers(k, n):
    check(q4((8,), k, n, 32), limits="browser", subgroups=False, f16=False)


def test_rows_too_long_for_workgroup_memory_are_not_staged(monkeypatch):
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(Gemv(rows=1, lanes=32, staged=True)),))
    check(q4((1,), 4096, 3, 32), limits="browser", subgroups=False, f16=False)


@pytest.mark.parametrize("case, limits", [(q4((70,), 40, 130, 8), {}), (c8((70,), 20, 70), {"max_invocations": 128})])
def test_larger_tiles(case, limits):
    check(case, device_class=ONE_UNIT, **limits)


@pytest.mark.parametrize("m", [2, 12])
def test_infinities_stay_where_they_belong(m):
    """Elements beyond K, in x or in the padding of the weight, never enter a sum, not even multiplied by zero."""
    x = np.ones((m, 36))
    x[-1, :] = math.inf
    case = q4((m,), 36, 6, 36)
    check(Case(case.op, (T(x.shape, values=tuple(x.ravel())), *case.args[1:]), q4gsw))


@pytest.mark.parametrize("dtype, f16", [(DType.F32, True), (F16, True), (F16, False)])
@pytest.mark.parametrize("m, k, n", [(7, 64, 140), (1, 36, 55)])
def test_weight_in_parts(m, k, n, dtype, f16):
    case = q4((m,), k, n, 32 if k == 64 else 12, dtype=dtype, bias=True)
    limit = max(up(k, 8) // 2 * 12, m * n * 4, m * k * 4, case.args[2].shape[0] * up(n, 4) * 4) + 16
    assert limit < up(k, 8) // 2 * n
    check(case, f16=f16, max_binding_bytes=limit)


@pytest.mark.parametrize("s", [0, 1, 2, 4, 5, 33])
def test_live_rows(s):
    check(q4((1, s), 64, 20, 32, bias=True, limit=(1, 33, 64)))


def test_the_reference_is_that_of_the_wheel():
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401

    x, weight = torch.randn(3, 36), torch.randint(0, 256, (5, 20), dtype=torch.uint8)
    scales, bias = torch.rand(3, 5), torch.randn(5)
    theirs = torch.ops.et_vk.linear_q4gsw(x, weight, scales, 12, bias)
    torch.testing.assert_close(q4gsw(x, weight, scales, 12, bias), theirs)


REFUSED = [
    (q4((), 8, 4, 4).args, 0, T(()), "x must have at least one dimension"),
    (q4((), 8, 4, 4).args, 1, T((8,), U8), "the weight must have 2 dimensions, not the shape [8]"),
    (q4((), 8, 4, 4).args, 1, T((4, 3), U8), "rows of 3 bytes do not hold 8 elements of 4 bits"),
    (q4((), 8, 4, 4).args, 2, T((1, 4)), "scales of shape [1, 4] do not fit 4 rows of 8 in groups of 4"),
    (q4((), 8, 4, 4).args, 4, T((3,)), "a bias of shape [3] does not fit 4 columns"),
]


@pytest.mark.parametrize("args, position, wrong, message", REFUSED, ids=str)
def test_refused(args, position, wrong, message):
    args = (*args[:position], wrong, *args[position + 1 :])
    case = Case("et_vk.linear_q4gsw.default", args)
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((4,), np.float32)])
    with pytest.raises(ShapeError) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"
