"""Convolutions: every variant over one to three axes, groups, dilation, transposed, clamped, dynamic sizes."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest
import torch
from tests.cases import ONE_UNIT
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.graph.graph import Tensor
from ptegpu.ops import product
from ptegpu.ops.conv_products import window_of
from ptegpu.plan.target import Target

F16 = DType.F16
RELU = sys.float_info.max  # the upper bound of a relu as it is exported


def conv(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    stride: list[int] | None = None,
    padding: list[int] | None = None,
    dilation: list[int] | None = None,
    *,
    groups: int = 1,
    bias: bool = True,
    output_padding: list[int] | None = None,
    transposed: bool = False,
    dtype: DType = DType.F32,
    limit: tuple[int, ...] | None = None,
    clamp: tuple[float | None, float | None] | None = None,
    note: str = "",
) -> Case:
    """Return a convolution with constant weights; by default its stride is 1 and its padding 0."""
    axes = len(weight) - 2
    channels = weight[1] * groups if transposed else weight[0]
    args = (
        T(x, dtype, limit=limit),
        T(weight, dtype, constant=True),
        T((channels,), dtype, constant=True) if bias else None,
        stride or [1] * axes,
        padding or [0] * axes,
        dilation or [1] * axes,
        transposed,
        output_padding or [0] * axes,
        groups,
    )
    if clamp is None:
        return Case("aten.convolution.default", args, note=note)
    return Case("et_vk.conv_with_clamp.default", (*args, *clamp), reference=clamped, note=note)


def clamped(*args) -> torch.Tensor:
    """Clamp a convolution; the largest double means no upper bound, because PyTorch refuses it for smaller dtypes."""
    *operands, low, high = args
    return torch.clamp(torch.convolution(*operands), low, None if high == RELU else high)


transposed = partial(conv, transposed=True)

WHOLE = [
    conv((1, 40, 1, 1), (36, 40, 1, 1)),
    conv((3, 6, 3, 5), (7, 6, 3, 5)),
    conv((2, 5, 9), (3, 5, 9), bias=False),
    conv((9, 16, 1, 1), (35, 16, 1, 1), clamp=(-0.5, 0.5)),
]

POINTWISE = [
    conv((1, 20, 6, 7), (9, 20, 1, 1)),
    conv((3, 20, 8, 4), (9, 20, 1, 1)),
    conv((2, 9, 5, 5), (34, 9, 1, 1), bias=False),
    conv((2, 3, 5), (2, 3, 1)),
    conv((2, 12, 33), (3, 12, 1)),
    conv((2, 24, 5, 4), (12, 12, 1, 1), groups=2),
    conv((2, 24, 1, 1), (12, 12, 1, 1), groups=2),
    conv((2, 8, 3, 3), (8, 1, 1, 1), groups=8),
    conv((2, 12, 3, 4, 5), (6, 12, 1, 1, 1)),
    conv((2, 520, 4, 4), (6, 260, 1, 1), groups=2),  # split K
    conv((2, 20, 6, 6), (9, 20, 1, 1), dtype=F16),
    conv((2, 20, 5, 5), (9, 20, 1, 1), dtype=F16),
    conv((2, 20, 6, 7), (9, 20, 1, 1), clamp=(0.0, RELU)),
]

DIRECT = [
    conv((1, 3, 8, 8), (3, 1, 3, 3), padding=[1, 1], groups=3),
    conv((2, 5, 7, 9), (5, 1, 3, 3), padding=[1, 1], groups=5),
    conv((2, 4, 9, 12), (4, 1, 3, 3), [2, 2], [1, 1], groups=4),
    conv((2, 4, 9, 16), (8, 1, 5, 5), [1, 1], [2, 2], groups=4),
    conv((1, 4, 11, 12), (4, 1, 3, 3), [1, 1], [2, 2], [2, 2], groups=4),
    conv((1, 4, 11, 13), (4, 1, 3, 2), [2, 3], [1, 0], [1, 3], groups=4, bias=False),
    conv((2, 6, 6, 8), (4, 3, 3, 3), padding=[1, 1], groups=2),
    conv((2, 6, 6, 7), (9, 2, 2, 3), padding=[0, 1], groups=3),
    conv((2, 4, 20), (4, 1, 3), padding=[1], groups=4),
    conv((1, 4, 19), (8, 1, 5), [2], [4], groups=4),
    conv((1, 2, 40), (2, 1, 31), [1], [15], groups=2),
    conv((1, 2, 40), (2, 1, 33), [1], [16], groups=2, note=" too long to unroll"),
    conv((1, 2, 3), (2, 1, 3), [1], [2], groups=2),
    conv((1, 2, 5, 4, 8), (2, 1, 3, 3, 3), [1, 2, 1], [1, 1, 1], groups=2),
    conv((1, 4, 6, 8), (4, 1, 3, 3), padding=[1, 1], groups=4, dtype=F16),
    conv((1, 4, 6, 7), (4, 1, 3, 3), padding=[1, 1], groups=4, dtype=F16),
    conv((2, 4, 6, 8), (4, 1, 3, 3), padding=[1, 1], groups=4, clamp=(-1.0, 1.0)),
]

WINDOWS = [
    conv((1, 3, 8, 8), (5, 3, 3, 3), padding=[1, 1]),
    conv((2, 3, 9, 7), (6, 3, 3, 3), [2, 2], [1, 1]),
    conv((1, 3, 16, 16), (40, 3, 4, 4), [4, 4]),
    conv((2, 8, 5, 5), (9, 8, 1, 1), [2, 2]),
    conv((1, 8, 5, 5), (9, 8, 1, 1), [1, 1], [1, 1]),
    conv((1, 4, 12, 11), (33, 4, 3, 2), [1, 2], [2, 1], [2, 3]),
    conv((1, 9, 7, 7), (3, 9, 3, 3), padding=[1, 1]),
    conv((1, 1, 5, 6), (4, 1, 2, 2), bias=False),
    conv((1, 40, 4, 4), (6, 40, 3, 3), padding=[1, 1]),
    conv((2, 120, 3, 3), (6, 120, 3, 3), padding=[1, 1]),  # split K
    conv((2, 32, 5, 5), (32, 16, 3, 3), padding=[1, 1], groups=2),
    conv((2, 8, 30), (12, 8, 3), [2], [1]),
    conv((1, 8, 30), (33, 8, 5), [1], [0], [2], bias=False),
    conv((1, 4, 4, 5, 6), (5, 4, 2, 3, 2), [1, 1, 2], [0, 1, 0]),
    conv((2, 3, 8, 8), (6, 3, 3, 3), padding=[1, 1], dtype=F16),
    conv((2, 3, 7, 7), (6, 3, 3, 3), padding=[1, 1], dtype=F16),
    conv((2, 3, 8, 8), (6, 3, 3, 3), [2, 2], [1, 1], clamp=(0.0, RELU)),
    conv((2, 3, 7, 7), (6, 3, 3, 3), padding=[1, 1], clamp=(None, 0.25)),
    conv((1, 90, 3, 3), (6, 90, 3, 3), padding=[1, 1], clamp=(-1.0, None)),
    conv((0, 3, 8, 8), (6, 3, 3, 3)),
    conv((1, 3, 8, 8), (6, 3, 3, 3), [2], [1], [1], note=" one number for both axes"),
]

TRANSPOSED = [
    transposed((1, 3, 4, 4), (3, 5, 2, 2), [2, 2]),
    transposed((2, 4, 5, 3), (4, 6, 3, 3), [2, 2], [1, 1], output_padding=[1, 1]),
    transposed((1, 4, 5, 5), (4, 3, 3, 3)),
    transposed((1, 4, 5, 4), (4, 3, 4, 3), [3, 2], [2, 0], [1, 2], output_padding=[0, 1], bias=False),
    transposed((2, 6, 4, 5), (6, 2, 3, 3), [2, 2], [1, 1], groups=2),
    transposed((2, 4, 4, 4), (4, 1, 4, 4), [2, 2], [1, 1], groups=4),
    transposed((2, 4, 9), (4, 5, 4), [2], [1]),
    transposed((1, 3, 5), (3, 9, 16), [8], [4]),
    transposed((1, 2, 3, 3, 2), (2, 3, 2, 2, 2), [2, 2, 2]),
    transposed((1, 9, 3, 3), (9, 35, 1, 1), [1, 1]),
    transposed((1, 8, 4, 4), (8, 4, 2, 2), [2, 2], dtype=F16),
    transposed((1, 8, 4, 4), (8, 4, 2, 2), [2, 2], clamp=(0.0, RELU)),
    transposed((0, 3, 4, 4), (3, 5, 2, 2), [2, 2]),
]

PHASES = [
    transposed((1, 16, 4, 4), (16, 12, 2, 2), [2, 2]),
    transposed((2, 16, 5, 3), (16, 6, 3, 3), [2, 2], [1, 1], output_padding=[1, 1]),
    transposed((1, 20, 5, 4), (20, 9, 3, 3), [1, 1], [1, 0], [2, 3]),
    transposed((1, 16, 5, 4), (16, 9, 5, 2), [3, 3], [2, 0], output_padding=[0, 2], bias=False),
    transposed((2, 24, 4, 5), (24, 9, 3, 3), [2, 1], [1, 1], [1, 2], groups=2),
    transposed((2, 16, 9), (16, 8, 16), [8], [4]),
    transposed((1, 16, 3, 2, 3), (16, 6, 2, 3, 2), [2, 2, 2], [0, 1, 0]),
    transposed((1, 16, 1, 1), (16, 6, 1, 1), [2, 2], output_padding=[1, 1]),
    transposed((3, 16, 1, 1), (16, 6, 1, 1), clamp=(-1.0, 1.0)),
    transposed((1, 16, 5, 5), (16, 6, 3, 3), padding=[1, 1], dtype=F16),
    transposed((1, 16, 4, 3), (16, 6, 2, 2), [2, 2], dtype=F16),
    transposed((1, 16, 4, 4), (16, 6, 4, 4), [2, 2], [1, 1], clamp=(0.0, RELU)),
    transposed((1, 16, 6, 6), (16, 6, 3, 3), [2, 2], [4, 3], note=" more padding than kernel"),
]

CASES = [*WHOLE, *POINTWISE, *DIRECT, *WINDOWS, *TRANSPOSED, *PHASES]

BENCHMARKS = [  # at real sizes
    conv((8, 3, 224, 224), (64, 3, 7, 7), [2, 2], [3, 3]),
    conv((8, 64, 56, 56), (64, 64, 3, 3), padding=[1, 1]),
    conv((8, 256, 14, 14), (256, 256, 3, 3), padding=[1, 1]),
    conv((8, 512, 7, 7), (512, 512, 3, 3), padding=[1, 1]),
    conv((8, 256, 56, 56), (128, 256, 1, 1)),
    conv((8, 144, 56, 56), (144, 1, 3, 3), padding=[1, 1], groups=144),
    conv((8, 960, 7, 7), (960, 1, 5, 5), padding=[2, 2], groups=960),
    conv((1, 3, 224, 224), (768, 3, 16, 16), [16, 16]),
    conv((1, 80, 3000), (384, 80, 3), padding=[1]),
    transposed((1, 128, 64, 64), (128, 64, 2, 2), [2, 2]),
    conv((8, 64, 56, 56), (64, 64, 3, 3), padding=[1, 1], dtype=F16),
]
HALVES = [c for c in CASES if c.args[0].dtype is F16]
BROWSER = [*WHOLE[3:], *POINTWISE[5::8], *DIRECT[2::8], *WINDOWS[1::9], *HALVES[::2]]
SOFTWARE = [*WHOLE[::3], *POINTWISE[::3], *WINDOWS[::3]]


@pytest.mark.parametrize("case", [DIRECT[0], WINDOWS[0], TRANSPOSED[1], PHASES[1]], ids=str)
def test_workgroups_of_128(case):
    check(case, max_invocations=128)


def test_larger_tiles():
    check(conv((1, 5, 9, 9), (70, 5, 3, 3), padding=[1, 1]), device_class=ONE_UNIT)


LIVE = [
    lambda **x: conv(weight=(6, 8, 3, 3), padding=[1, 1], **x),
    lambda **x: conv(weight=(6, 8, 1, 1), **x),
    lambda **x: conv(weight=(8, 1, 3, 3), padding=[1, 1], groups=8, **x),
    lambda **x: conv(weight=(6, 8, 3, 3), stride=[2, 2], **x),
    lambda **x: transposed(weight=(8, 6, 2, 2), stride=[2, 2], **x),
    lambda **x: transposed(weight=(8, 12, 3, 3), stride=[2, 2], padding=[1, 1], **x),
]


@pytest.mark.parametrize("shape", [(0, 8, 9, 12), (1, 8, 3, 3), (2, 8, 9, 5), (3, 8, 4, 12)])
@pytest.mark.parametrize("make", LIVE, ids=["windows", "pointwise", "direct", "strided", "transposed", "phases"])
def test_live_sizes(make, shape):
    """Any number and size of images fits the memory of the largest; one of the window's size becomes a matrix row."""
    check(make(x=shape, limit=(3, 8, 9, 12)))


@pytest.mark.parametrize("groups", [1, 2])
def test_infinities_stay_in_their_windows(groups):
    x = np.ones((1, 2, 5, 6))
    x[0, :, 2, 0] = np.inf
    case = conv((1, 2, 5, 6), (2, 2 // groups, 3, 3), padding=[1, 1], groups=groups)
    args = (T(x.shape, values=tuple(x.ravel())), T(case.args[1].shape, low=0.5, high=1.0), *case.args[2:])
    check(Case(case.op, args))


CHOICES = [
    (conv((4, 512, 1, 1), (1000, 512, 1, 1)), "whole image"),
    (conv((1, 256, 14, 14), (1024, 256, 1, 1)), "pointwise"),
    (conv((1, 256, 14, 14), (512, 256, 1, 1), [2, 2]), "windows"),
    (conv((1, 64, 56, 56), (64, 64, 3, 3), padding=[1, 1]), "windows"),
    (conv((1, 96, 56, 56), (96, 1, 3, 3), padding=[1, 1], groups=96), "direct"),
    (conv((1, 128, 14, 14), (128, 4, 3, 3), padding=[1, 1], groups=32), "direct"),
    (conv((1, 1024, 14, 14), (1024, 32, 3, 3), padding=[1, 1], groups=32), "windows"),
    (conv((1, 2, 100), (2, 1, 65), groups=2), "windows"),
    (transposed((1, 256, 32, 32), (256, 64, 2, 2), [2, 2]), "transposed, by phases"),
    (transposed((1, 64, 32, 32), (64, 1, 2, 2), [2, 2], groups=64), "transposed"),
    (transposed((1, 256, 32, 32), (256, 64, 2, 2), [2, 2], dilation=[2, 2]), "transposed"),
    (transposed((1, 256, 512, 512), (256, 64, 2, 2), [2, 2]), "transposed"),  # 256 MiB of phases
]


@pytest.mark.parametrize("case, name", CHOICES, ids=str)
def test_choice_of_variant(case, name):
    x, weight, _, stride, padding, dilation, flipped, more, groups = case.args
    image, w = Tensor("x", x.dtype, x.shape), Tensor("w", weight.dtype, weight.shape)
    window = window_of(x.shape[2:], weight.shape[2:], stride, padding, dilation, more if flipped else None)
    y = Tensor("y", x.dtype, (x.shape[0], weight.shape[1] * groups if flipped else weight.shape[0], *window.out))
    convolution = product.convolved(image, w, window, groups, y.shape[1], y)
    assert product.choose(convolution, Target()).name == name


GEOMETRY = conv((1, 3, 4, 4), (5, 3, 3, 3)).args[3:]
REFUSED = [
    (
        Case("aten.convolution.default", (T((1, 3, 4, 4)), T((5, 3, 3, 3)), T((4,)), *GEOMETRY)),
        "a bias of [4] does not fit 5 output channels",
    ),
    (conv((3, 4, 4), (5, 3, 3, 3)), "a weight of [5, 3, 3, 3] cannot be applied to [3, 4, 4]"),
    (conv((1, 4), (5, 4)), "a weight of [5, 4] cannot be applied to [1, 4]"),
    (conv((1, 3, 4, 4), (5, 2, 3, 3)), "a weight of [5, 2, 3, 3] in 1 groups cannot be applied to [1, 3, 4, 4]"),
    (
        conv((1, 4, 4, 4), (5, 2, 3, 3), groups=2),
        "a weight of [5, 2, 3, 3] in 2 groups cannot be applied to [1, 4, 4, 4]",
    ),
    (
        transposed((1, 3, 4, 4), (2, 5, 3, 3)),
        "a weight of [2, 5, 3, 3] in 1 groups cannot be applied to [1, 3, 4, 4], transposed",
    ),
    (conv((1, 0, 4, 4), (5, 0, 3, 3)), "a weight of [5, 0, 3, 3] in 1 groups cannot be applied to [1, 0, 4, 4]"),
    (conv((1, 3, 4, 4), (5, 3, 3, 3), [1, 1, 1]), "stride [1, 1, 1] does not fit 2 dimensions"),
    (conv((1, 3, 4, 4), (5, 3, 3, 3), [0, 1]), "stride [0, 1] does not fit 2 dimensions"),
    (
        conv((1, 3, 4, 4), (5, 3, 3, 3), [1, 1 << 40]),
        "stride [1, 1099511627776], padding [0, 0] and dilation [1, 1] exceed 16,777,216",
    ),
    (
        conv((1, 3, 2, 4), (5, 3, 3, 3)),
        "a kernel of [3, 3] does not fit an input of [2, 4] with padding [0, 0]",
    ),
    (
        conv((1, 3, 0, 4), (5, 3, 3, 3), padding=[2, 2]),
        "a kernel of [3, 3] does not fit an input of [0, 4] with padding [2, 2]",
    ),
]


@pytest.mark.parametrize("case, message", REFUSED, ids=str)
def test_refused(case, message):
    arrays = {id(a): np.zeros(a.shape, np.float32) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((2, 4), np.float32)])
    with pytest.raises(ShapeError) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"
