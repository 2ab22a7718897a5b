"""Linear layers on int8 activations: exact sums, 4-bit and 8-bit weights, parameters per row or tensor, dynamic rows.

Scales are powers of two and biases have few bits, so int8 results have exactly one correct value.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.cases import ONE_UNIT
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import PtegpuError
from ptegpu.plan.target import Target

F16, F32, I32, I8, U8 = DType.F16, DType.F32, DType.I32, DType.I8, DType.U8


def up(n: int, to: int) -> int:
    return -(-n // to) * to


def fixed(values: np.ndarray, dtype: DType, **more) -> T:
    return T(values.shape, dtype, values=tuple(values.ravel()), **more)


def short(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return numbers with few bits."""
    return rng.integers(-64, 64, shape) / 64


def q4_weight(n: int, k: int, group: int) -> tuple[T, T]:
    """Return a packed weight, K padded to 8, and the sums of its groups, N padded to 8."""
    w = np.random.default_rng(n * k).integers(-8, 8, (n, k))
    sums = np.zeros((k // group, up(n, 8)), np.int32)
    sums[:, :n] = w.reshape(n, k // group, group).sum(2).T
    padded = np.pad(w, ((0, 0), (0, up(k, 8) - k))) + 8
    return fixed(padded[:, ::2] | padded[:, 1::2] << 4, U8, constant=True), fixed(sums, I32, constant=True)


def dq8ca_q4gsw(x, scale, zero, weight, sums, scales, group, bias):
    """Multiply with quantised x, which ExecuTorch's own reference ignores."""
    n, k = len(weight), x.shape[-1]
    scale, zero = scale.reshape(*x.shape[:-1], 1), zero.reshape(*x.shape[:-1], 1)
    q = torch.clamp(torch.round(x * (1.0 / scale)) + zero, -128, 127)
    halves = torch.stack((weight & 15, weight >> 4), -1).reshape(n, -1)[:, :k].to(x.dtype) - 8
    w = halves * scales.T[:n].repeat_interleave(group, 1).to(x.dtype)
    y = ((q - zero) * scale).to(x.dtype) @ w.T
    return y if bias is None else y + bias[:n].to(x.dtype)


def dq(lead, k, n, group, *, bias=False, dtype=F32, zero=I8, limit=None) -> Case:
    rng = np.random.default_rng(k)
    weight, sums = q4_weight(n, k, group)
    args = (
        T((*lead, k), dtype, limit=limit),
        fixed(2.0 ** rng.integers(-7, -4, lead), dtype, limit=limit and limit[:-1]),
        fixed(rng.integers(-50, 50, lead), zero, limit=limit and limit[:-1]),
        weight,
        sums,
        T((k // group, up(n, 4)), dtype, 0.01, 0.1, constant=True),
        group,
        T((up(n, 4),), dtype, constant=True) if bias else None,
    )
    return Case("et_vk.linear_dq8ca_q4gsw.default", args, dq8ca_q4gsw)


def q8_weight(n: int, k: int) -> tuple[T, T, T, T]:
    """Return a weight, and its sums, scales and bias padded to 4."""
    rng = np.random.default_rng(n * k)
    w = rng.integers(-127, 128, (n, k))
    pad = (0, up(n, 4) - n)
    return (
        fixed(w, I8, constant=True),
        fixed(np.pad(w.sum(1), pad), I32, constant=True),
        fixed(np.pad(2.0 ** rng.integers(-9, -6, n), pad), F32, constant=True),
        fixed(np.pad(short(rng, n), pad), F32, constant=True),
    )


def sums_of(x, scale, zero, weight, scales, bias):
    y = ((x.double() - zero) * scale) @ (weight.double() * scales[: len(weight), None]).T
    return y if bias is None else y + bias[: len(weight)]


def q8csw(x, scale, zero, weight, sums, scales, bias):
    """Multiply dequantised x; ExecuTorch's own reference uses the int8 values instead."""
    if x.is_floating_point():
        x = torch.clamp(torch.round(x * (1.0 / scale)) + zero, -128, 127)
    return sums_of(x, scale, zero, weight, scales, bias).float()


def requantised(x, scale, zero, weight, sums, scales, out_scale, out_zero, bias, activation):
    y = sums_of(x, scale, zero, weight, scales, bias)
    y = torch.relu(y) if activation == "relu" else y
    return torch.clamp(torch.round(y * (1.0 / out_scale)) + out_zero, -128, 127).to(torch.int8)


def q8(lead, k, n, *, bias=True, dtype=I8, limit=None) -> Case:
    weight, sums, scales, added = q8_weight(n, k)
    x = T((*lead, k), dtype, -128 if dtype is I8 else -2, 128 if dtype is I8 else 2, limit=limit)
    args = (x, 0.03125, -7, weight, sums, scales, added if bias else None)
    return Case("et_vk.linear_q8ta_q8csw.default", args, q8csw)


def to8(lead, k, n, *, bias=True, activation="none", gemv=False, limit=None) -> Case:
    weight, sums, scales, added = q8_weight(n, k)
    x = T((*lead, k), I8, -128, 128, limit=limit)
    args = (x, 0.03125, 5, weight, sums, scales, 0.0625, 3, added if bias else None, activation)
    return Case(f"et_vk.q8ta_linear{'_gemv' if gemv else ''}.default", args, requantised)


DYNAMIC = [
    dq((), 64, 5, 32, bias=True),
    dq((1, 1), 256, 33, 64),
    dq((1,), 512, 20, 128, bias=True),
    dq((1,), 2048, 6, 32),
    dq((1,), 40, 9, 8, zero=I32),
    dq((1,), 36, 12, 36),
    dq((1,), 36, 10, 12, bias=True),  # a group size that 8 does not divide: computed in floats
    dq((1,), 96, 7, 48),
    dq((4,), 96, 17, 32),
    dq((1,), 64, 20, 32, dtype=F16, bias=True, zero=I32),
    dq((7,), 64, 36, 32, bias=True),
    dq((33,), 40, 35, 8),
    dq((2, 17), 96, 33, 96),
    dq((6,), 36, 9, 12),
    dq((6,), 60, 8, 60, zero=F32),
    dq((6,), 64, 20, 32, dtype=F16),
    dq((0,), 64, 20, 32),
]

STATIC = [
    *(q8((m,), k, n) for m in (1, 3, 6) for k, n in [(64, 8), (37, 7)]),
    q8((1,), 1, 3),
    q8((2, 3), 70, 5, bias=False),
    q8((33,), 48, 36),
    q8((1,), 2048, 9),
    q8((3,), 64, 8, dtype=F32),
    q8((0,), 64, 8),
]

INT8 = [
    *(to8((m,), k, n) for m in (2, 6) for k, n in [(64, 8), (37, 7), (70, 12)]),
    to8((1,), 64, 16, gemv=True),
    to8((1,), 64, 9, gemv=True, activation="relu"),
    to8((2, 3), 64, 8, activation="relu"),
    to8((1, 1), 48, 6, bias=False, gemv=True),
    to8((40,), 48, 40, bias=False),
    to8((), 16, 4),
]

CASES = [*DYNAMIC, *STATIC, *INT8]

BENCHMARKS = [dq((m,), 1024, 2048, 32) for m in (1, 64, 512)] + [to8((m,), 1024, 2048) for m in (1, 512)]  # real sizes
BROWSER = [*DYNAMIC[::3], DYNAMIC[-2], *STATIC[::4], INT8[0], INT8[4]]


@pytest.mark.parametrize("case", [DYNAMIC[3], INT8[-2]], ids=str)
def test_workgroups_of_128(case):
    check(case, subgroups=False, max_invocations=128)


@pytest.mark.parametrize("case", [dq((70,), 64, 66, 32)], ids=str)
def test_larger_tiles(case):
    check(case, device_class=ONE_UNIT)


@pytest.mark.parametrize("f16", [True, False])
@pytest.mark.parametrize(
    "case, limit", [(dq((1,), 64, 68, 32), 592), (dq((5,), 96, 255, 32, dtype=F16), 5200)], ids=str
)
def test_weight_of_4_bits_in_parts(case, limit, f16):
    assert limit < np.prod(case.args[3].shape)
    check(case, f16=f16, max_binding_bytes=limit)


@pytest.mark.parametrize("case", [to8((2,), 64, 24), to8((5,), 60, 23)], ids=str)
def test_weight_of_8_bits_in_parts(case):
    check(case, max_binding_bytes=800)


@pytest.mark.parametrize("s", [0, 1, 33])
def test_live_rows(s):
    check(dq((1, s), 64, 20, 32, limit=(1, 33, 64)))
    check(to8((s,), 36, 10, limit=(33, 36)))


def test_reference_of_the_int8_result_is_that_of_the_wheel():
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401

    x, w = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in [(3, 16), (8, 16)])
    args = (x, 0.05, 5, w, w.sum(1), torch.rand(8) / 50, 0.1, 3, torch.randn(8), "relu")
    torch.testing.assert_close(requantised(*args), torch.ops.et_vk.q8ta_linear(*args))


REFUSED = [
    (dq((2,), 32, 4, 32), 1, T((3,)), "scales and zero points of shapes [3] and [2] do not fit 2 rows"),
    (dq((2,), 32, 4, 32), 4, T((1, 3), I32), "weight sums int32[1, 3] do not fit 4 rows of 1 groups"),
    (to8((2,), 32, 4), 9, "gelu", "the activation 'gelu' is not one of none, relu"),
    (to8((2,), 32, 4), 3, T((4, 31), I8), "rows of 31 bytes do not hold 32 elements of 8 bits"),
]


@pytest.mark.parametrize("case, position, wrong, message", REFUSED, ids=str)
def test_refused(case, position, wrong, message):
    case = Case(case.op, (*case.args[:position], wrong, *case.args[position + 1 :]))
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((2, 4), np.float32)])
    with pytest.raises(PtegpuError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"{case.op}: {message}"
