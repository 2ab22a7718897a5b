"""Operators of on-device training against references in PyTorch and in ExecuTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.cases import ONE_UNIT
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import PtegpuError
from ptegpu.plan.target import Target

F32, F16, U8, I32 = DType.F32, DType.F16, DType.U8, DType.I32
STEP = (0.01, 0.9, 0.99, 1e-8, 0.1, 0.19, 0.0199)


def weight_gradient(d_out, x):
    return torch.einsum("mn,mk->nk", d_out.reshape(-1, d_out.shape[-1]), x.reshape(-1, x.shape[-1]))


def unpacked(weight):
    """Return the (N, K) integers from -8 to 7 in (N, K / 2) bytes."""
    return torch.stack((weight & 15, weight >> 4), -1).reshape(len(weight), -1).to(torch.int32) - 8


def each_scale(scales, group, n, k):
    return scales.T[:n].repeat_interleave(group, 1)[:, :k]


def input_gradient(d_out, weight, scales, group):
    n, k = len(weight), 2 * weight.shape[1]
    return d_out @ (unpacked(weight).to(d_out.dtype) * each_scale(scales, group, n, k).to(d_out.dtype))


def requantised(latent, scales, group):
    n, k = latent.shape
    scale = each_scale(scales, group, n, k)
    codes = torch.where(scale == 0, 0.0, latent / scale).round().clamp(-8, 7).nan_to_num(0.0).to(torch.int32) + 8
    codes = torch.nn.functional.pad(codes, (0, k % 2))
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)


def cross_entropy(logits, labels, n_valid):
    x = logits.detach().clone().requires_grad_()
    ignored = torch.where(labels < 0, -1, labels).long()
    loss = torch.nn.functional.cross_entropy(x, ignored, ignore_index=-1, reduction="sum") / n_valid
    (gradient,) = torch.autograd.grad(loss, x)
    return loss.detach(), torch.where(labels[:, None] < 0, 0.0, gradient)


def adamw(param, m, v, grad, lr, beta1, beta2, eps, decay, correction1, correction2):
    m.copy_(beta1 * m + (1 - beta1) * grad)
    v.copy_(beta2 * v + (1 - beta2) * grad**2)
    param.copy_(param * (1 - lr * decay) - lr * (m / correction1) / ((v / correction2).sqrt() + eps))
    return param, m, v


def dw(lead, n, k, dtype=F32, limit=None):
    d_out = T((*lead, n), dtype, limit=(*limit, n) if limit else None)
    return Case(
        "et_vk.linear_dW.default", (d_out, T((*lead, k), dtype, limit=(*limit, k) if limit else None)), weight_gradient
    )


def dx(lead, n, k, group, dtype=F32, columns=None, scales=None, limit=None):
    d_out = T((*lead, n), dtype, limit=(*limit, n) if limit else None)
    weight = T((n, k // 2), U8, 0, 256, constant=True)
    scale = T((-(-k // group), columns or n), scales or dtype, 0.01, 0.1, constant=True)
    return Case("et_vk.linear_q4gsw_backward.default", (d_out, weight, scale, group), input_gradient)


def requant(n, k, group, dtype=F32, columns=None, latent=None):
    values = latent or T((n, k), dtype)
    return Case(
        "et_vk.q4gsw_requant.default",
        (values, T((-(-k // group), columns or n), dtype, 0.1, 0.5), group),
        requantised,
    )


def ce(rows, classes, dtype=F32, low=-3, n_valid=3.0, labels=None, **logits):
    chosen = T((rows,), I32, low, classes) if labels is None else T((rows,), I32, values=labels)
    return Case("et_vk.fused_ce.default", (T((rows, classes), dtype, **logits), chosen, n_valid), cross_entropy)


def step(shape, dtype=F32, numbers=STEP, grad=None):
    states = (T(shape, dtype), T(shape, dtype), T(shape, dtype, 0.1, 2.0))
    return Case("et_vk.adamw_step.default", (*states, grad or T(shape, dtype), *numbers), adamw, mutated=(0, 1, 2))


WEIGHT_GRADIENTS = [
    dw((), 5, 7),
    dw((1,), 8, 4),
    dw((2, 3), 5, 9),
    dw((40,), 36, 20),
    dw((17,), 3, 35),
    dw((17,), 35, 1),
    dw((9,), 1, 8),
    dw((2, 2, 300), 6, 10),  # split rows
    dw((0,), 4, 3),
    dw((6,), 12, 8, F16),
    dw((13,), 5, 3, F16),
]
INPUT_GRADIENTS = [
    dx((), 6, 32, 16),
    dx((1,), 5, 8, 8),
    dx((3,), 33, 40, 8),
    dx((7,), 36, 64, 32, columns=40),
    dx((2, 17), 9, 96, 96),
    dx((6,), 7, 30, 10),  # rows that do not fill their last word
    dx((6,), 7, 12, 3, columns=8),
    dx((5,), 6, 2, 2),
    dx((4,), 1100, 20, 4),  # split N
    dx((6,), 8, 32, 32, F16),
    dx((6,), 5, 18, 6, F16),
    dx((6,), 8, 32, 16, scales=F16),
    dx((0,), 8, 32, 32),
    dx((2, 0), 8, 32, 32),
]
SPECIAL = (math.inf, -math.inf, math.nan, 100.0, -100.0, 0.0, -0.0, 1e30)
REQUANTS = [
    requant(3, 32, 16),
    requant(40, 64, 8, columns=44),
    requant(5, 36, 12),
    requant(4, 7, 4),
    requant(3, 1, 1),
    requant(1, 2, 32),
    requant(5, 24, 3),
    requant(6, 16, 16, F16),
    requant(3, 9, 4, F16),
    requant(0, 8, 8),
    requant(1, 8, 8, latent=T((1, 8), values=SPECIAL)),
    requant(2, 4, 4, latent=T((2, 4), values=SPECIAL)),
]
CROSS_ENTROPIES = [
    ce(5, 8),
    ce(1, 1, low=0),
    ce(7, 3),
    ce(33, 30, n_valid=20.0),
    ce(3, 600),
    ce(2, 4100, low=0, high=50.0),
    ce(2, 1101, low=0),
    ce(4, 12, labels=(-1, -100, 11, 0), low=-200.0, high=200.0),
    ce(2, 8, labels=(-1, -1), n_valid=1.0),
    ce(0, 8),
    ce(6, 16, F16),
    ce(6, 5, F16),
    ce(2, 4, labels=(1, 2), values=(-math.inf, 1.0, 2.0, 3.0, 0.0, -math.inf, 1.0, 1.0)),
    ce(2, 4, labels=(-1, 2), values=(math.nan, 1.0, 2.0, 3.0, 0.0, 5.0, 1.0, 1.0)),
    ce(1, 5, labels=(0,), values=(-math.inf,) * 5),
]
STEPS = [
    step((8,)),
    step((3, 5)),
    step(()),
    step((2, 3, 4, 5)),
    step((33, 41)),
    step((0, 4)),
    step((4, 6), F16),
    step((7,), F16),
    step((9,), numbers=(0.1, 0.0, 0.5, 1e-3, 0.0, 1.0, 0.5)),
    step((6,), numbers=(0.1, 0.9, 0.999, 1e-8, 0.01, 0.5, 0.3), grad=T((6,), F16)),
]
CASES = [*WEIGHT_GRADIENTS, *INPUT_GRADIENTS, *REQUANTS, *CROSS_ENTROPIES, *STEPS]

BENCHMARKS = [dw((2048,), 2048, 2048), dx((2048,), 2048, 2048, 32), ce(512, 32000), step((4096, 4096))]  # at real sizes
BROWSER = [*WEIGHT_GRADIENTS[3::4], *INPUT_GRADIENTS[3::4], *REQUANTS[::4], *CROSS_ENTROPIES[::4], *STEPS[::3]]


@pytest.mark.parametrize("case", [INPUT_GRADIENTS[2], CROSS_ENTROPIES[5], REQUANTS[1]], ids=str)
def test_workgroups_of_128(case):
    check(case, subgroups=False, max_invocations=128)


@pytest.mark.parametrize("case", [dw((40,), 130, 70), dx((70,), 40, 130, 10)], ids=str)
def test_larger_tiles(case):
    check(case, device_class=ONE_UNIT)


@pytest.mark.parametrize("s", [0, 1, 5, 17])
def test_live_rows(s):
    check(dw((s,), 6, 9, limit=(17,)))
    check(dx((1, s), 6, 16, 8, limit=(1, 17)))


def test_halves_round_to_even():
    latent = T((1, 16), values=tuple(np.arange(-8, 8) * 0.25 + 0.125))
    scales = T((1, 1), values=(0.25,))
    check(Case("et_vk.q4gsw_requant.default", (latent, scales, 16), requantised))


def test_codes_of_a_dequantised_weight_are_the_weight():
    weight, scales = torch.randint(0, 256, (6, 16), dtype=torch.uint8), torch.rand(4, 6) + 0.1
    latent = unpacked(weight) * each_scale(scales, 8, 6, 32)
    operands = T((6, 32), values=tuple(latent.ravel().tolist())), T((4, 6), values=tuple(scales.ravel().tolist())), 8
    check(Case("et_vk.q4gsw_requant.default", operands, lambda *_: weight))


def test_a_scale_of_zero_gives_the_code_of_zero():
    scales = T((2, 3), values=(0.0, 0.5, 0.0, 0.25, 0.0, 0.0))
    check(Case("et_vk.q4gsw_requant.default", (T((3, 8)), scales, 4), requantised))


def test_labels_beyond_the_classes_count_as_the_last():
    def clamped(logits, labels, n_valid):
        return cross_entropy(logits, labels.clamp(max=4), n_valid)

    case = ce(2, 5, labels=(5, 2**31 - 1))
    check(Case(case.op, case.args, clamped))


WHEEL = [
    (weight_gradient, "linear_dW", (torch.randn(2, 3, 5), torch.randn(2, 3, 7))),
    (
        input_gradient,
        "linear_q4gsw_backward",
        (torch.randn(3, 5), torch.randint(0, 256, (5, 16), dtype=torch.uint8), torch.rand(4, 5), 8),
    ),
    (requantised, "q4gsw_requant", (torch.randn(3, 15), torch.rand(4, 3) + 0.1, 4)),
    (requantised, "q4gsw_requant", (torch.tensor([SPECIAL]), torch.ones(1, 1), 8)),
    (cross_entropy, "fused_ce", (torch.randn(4, 6), torch.tensor([3, -1, 0, -100]), 2.0)),
    (adamw, "adamw_step", (torch.randn(5), torch.randn(5), torch.rand(5), torch.randn(5), *STEP)),
]


@pytest.mark.parametrize("reference, name, args", WHEEL, ids=lambda a: a if isinstance(a, str) else "")
def test_references_are_those_of_the_wheel(reference, name, args):
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401

    def fresh():
        return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]

    torch.testing.assert_close(reference(*fresh()), getattr(torch.ops.et_vk, name)(*fresh()))


REFUSED = [
    (dw((), 4, 4), 0, T(()), "'d_out' is arg0:float32[], but must be [..., _]"),
    (dw((3,), 4, 5), 1, T((2, 5)), "d_out [3, 4] and x [2, 5] must have the same number of rows"),
    (dx((3,), 4, 8, 8), 1, T((8,), U8), "'weights' is arg1:uint8[8], but must be [n, _] where n = 4"),
    (dx((3,), 4, 8, 8), 0, T((3, 5)), "'weights' is arg1:uint8[4, 4], but must be [n, _] where n = 5"),
    (dx((3,), 4, 8, 4), 2, T((1, 4)), "scales of shape [1, 4] do not fit 4 rows of 8 in groups of 4"),
    (requant(4, 8, 8), 0, T((8,)), "'latent' is arg0:float32[8], but must be [n, k]"),
    (requant(4, 8, 8), 2, 0, "scales of shape [1, 4] do not fit 4 rows of 8 in groups of 0"),
    (ce(4, 8), 1, T((3,), I32), "'labels' is arg1:int32[3], but must be [r] where r = 4, v = 8"),
    (ce(4, 8), 1, T((4,)), "'labels' is arg1:float32[4], but must be int32 or int8 or uint8"),
    (ce(4, 8), 0, T((4, 0)), "there are no classes"),
    (
        step((4,)),
        3,
        T((5,)),
        "parameter, moments and gradient must have the same shape, not [4], [4], [4], [5]",
    ),
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
