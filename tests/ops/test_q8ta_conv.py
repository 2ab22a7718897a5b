"""Convolutions in int8: batch, groups, relu, any width, overhanging windows, strides, dilations, transposed.

Scales are powers of two and biases have few bits, so there is exactly one correct result. For kernels larger than
1 × 1, ExecuTorch's own reference expects weights in another order than its exporter writes; ours takes exported ones.
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

I8, I32, F32 = DType.I8, DType.I32, DType.F32


def up(n: int, to: int = 4) -> int:
    return -(-n // to) * to


def fixed(values: np.ndarray, dtype: DType) -> T:
    return T(values.shape, dtype, values=tuple(values.ravel()), constant=True)


def requantised(y: torch.Tensor, scale: float, zero: int, activation: str) -> torch.Tensor:
    y = torch.relu(y) if activation == "relu" else y
    return torch.clamp(torch.round(y * (1.0 / scale)) + zero, -128, 127).to(torch.int8)


def conv(x, sx, zx, weight, sums, scales, sy, zy, bias, kernel, stride, padding, dilation, groups, activation):
    oc, depth = len(weight), x.shape[1] // groups
    w = weight[:, : depth * kernel[0] * kernel[1]].reshape(oc, *kernel, depth).permute(0, 3, 1, 2).double()
    w = w * scales[:oc].reshape(-1, 1, 1, 1)
    bias = None if bias is None else bias[:oc].double()
    y = torch.nn.functional.conv2d((x.double() - zx) * sx, w, bias, stride, padding, dilation, groups)
    return requantised(y, sy, zy, activation)


def depthwise(x, sx, zx, weight, sums, scales, sy, zy, bias, kernel, stride, padding, dilation, groups, activation):
    w = weight.permute(2, 0, 1).unsqueeze(1).double() * scales.reshape(-1, 1, 1, 1)
    bias = None if bias is None else bias.double()
    y = torch.nn.functional.conv2d((x.double() - zx) * sx, w, bias, stride, padding, dilation, groups)
    return requantised(y, sy, zy, activation)


def transposed(x, sx, zx, weight, sums, scales, sy, zy, bias, kernel, stride, padding, more, dilation, groups, act):
    oc, depth = len(weight), x.shape[1] // groups
    w = weight[:, : depth * kernel[0] * kernel[1]].reshape(groups, oc // groups, *kernel, depth)
    w = w.permute(0, 4, 1, 2, 3).reshape(groups * depth, oc // groups, *kernel).double()
    w = w * scales[: oc // groups].reshape(1, -1, 1, 1)
    bias = None if bias is None else bias[:oc].double()
    y = torch.nn.functional.conv_transpose2d((x.double() - zx) * sx, w, bias, stride, padding, more, groups, dilation)
    return requantised(y, sy, zy, act)


def case(
    kind, shape, oc, kernel, *, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, relu=False, bias=True,
    more=None, padded=True, limit=None,
):  # fmt: skip
    """Return a case with the exporter's arguments; `kind` is the suffix of the operator's name."""
    rng = np.random.default_rng(sum(shape) + oc)
    taps = kernel[0] * kernel[1]
    if kind == "_dw":
        w = rng.integers(-127, 128, (*kernel, oc))
        sums = w.sum((0, 1))
    else:
        w = rng.integers(-127, 128, (oc, taps * shape[1] // groups))
        sums = w.sum(1)
        w = np.pad(w, ((0, 0), (0, up(w.shape[1]) - w.shape[1]))) if padded else w
    count = oc // groups if kind == "_transposed" else oc
    pad = (0, up(oc) - oc)
    args = [
        T(shape, I8, -128, 128, limit=limit),
        0.0625,
        -9,
        fixed(w, I8),
        fixed(np.pad(sums, pad), I32),
        fixed(np.pad(2.0 ** rng.integers(-9, -6, count), (0, up(count) - count)), F32),
        0.5,
        4,
        fixed(np.pad(rng.integers(-64, 64, oc) / 64, pad), F32) if bias else None,
        list(kernel),
        list(stride),
        list(padding),
        *([list(more)] if more is not None else []),
        list(dilation),
        groups,
        "relu" if relu else "none",
    ]
    reference = {"": conv, "_pw": conv, "_dw": depthwise, "_transposed": transposed}[kind]
    return Case(f"et_vk.q8ta_conv2d{kind}.default", tuple(args), reference)


PLAIN = [
    case("", (1, 4, 5, 8), 4, (3, 3), padding=(1, 1)),
    case("", (2, 3, 6, 7), 6, (3, 3), padding=(1, 1), relu=True),
    case("", (1, 8, 9, 9), 40, (3, 2), stride=(2, 1), padding=(0, 1), bias=False),
    case("", (1, 4, 9, 10), 4, (3, 3), dilation=(2, 3), padding=(2, 0)),
    case("", (2, 8, 4, 6), 12, (3, 3), groups=4, padding=(1, 1), relu=True),
    case("", (1, 6, 4, 5), 4, (1, 3), groups=2),
    case("", (1, 3, 3, 3), 5, (3, 3), padded=False),
    case("", (1, 16, 1, 1), 8, (1, 1), stride=(2, 2)),
    case("", (0, 4, 5, 5), 4, (3, 3)),
    case("_pw", (1, 8, 5, 8), 4, (1, 1)),
    case("_pw", (2, 5, 3, 7), 33, (1, 1), relu=True),
    case("_pw", (1, 8, 3, 3), 8, (1, 1), groups=2, bias=False),
]

DEPTHWISE = [
    case("_dw", (1, 4, 5, 8), 4, (3, 3), padding=(1, 1), groups=4),
    case("_dw", (2, 8, 7, 5), 8, (3, 3), stride=(2, 2), padding=(1, 1), groups=8, relu=True),
    case("_dw", (1, 4, 9, 7), 4, (5, 3), dilation=(2, 2), padding=(3, 1), groups=4, bias=False),
    case("_dw", (0, 4, 5, 5), 4, (3, 3), groups=4),
]

TRANSPOSED = [
    case("_transposed", (1, 4, 3, 4), 4, (2, 2), stride=(2, 2), more=(0, 0)),
    case("_transposed", (2, 3, 3, 5), 6, (3, 3), stride=(2, 1), padding=(1, 1), more=(1, 0), relu=True),
    case("_transposed", (1, 8, 3, 3), 6, (3, 3), stride=(2, 2), more=(0, 0), groups=2, bias=False),
    case("_transposed", (1, 4, 4, 4), 4, (3, 3), dilation=(2, 2), padding=(1, 2), more=(0, 0)),
    case("_transposed", (1, 4, 3, 3), 4, (1, 1), stride=(3, 3), more=(2, 2)),
]

CASES = [*PLAIN, *DEPTHWISE, *TRANSPOSED]

BENCHMARKS = [  # at real sizes
    case("", (8, 64, 56, 56), 64, (3, 3), padding=(1, 1)),
    case("_pw", (8, 256, 56, 56), 128, (1, 1)),
    case("_dw", (8, 144, 56, 56), 144, (3, 3), padding=(1, 1), groups=144),
]
BROWSER = [PLAIN[1], PLAIN[4], DEPTHWISE[1], TRANSPOSED[2]]


def test_larger_tiles():
    check(case("", (2, 4, 9, 9), 70, (3, 3), padding=(1, 1)), device_class=ONE_UNIT)


@pytest.mark.parametrize("size", [(3, 3), (5, 4)])
def test_live_sizes(size):
    check(case("", (1, 4, *size), 4, (3, 3), padding=(1, 1), limit=(1, 4, 6, 8)))
    check(case("_dw", (1, 4, *size), 4, (3, 3), groups=4, limit=(1, 4, 6, 8)))
    check(case("_transposed", (1, 4, *size), 4, (2, 2), stride=(2, 2), more=(0, 0), limit=(1, 4, 6, 8)))


def test_references_are_those_of_the_wheel_where_it_is_right():
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401

    def tensors(source: Case) -> list:
        dtypes = {F32: torch.float32, I8: torch.int8, I32: torch.int32}
        return [
            torch.tensor(a.values, dtype=dtypes[a.dtype]).reshape(a.shape)
            if isinstance(a, T) and a.values
            else torch.randint(-128, 128, a.shape, dtype=torch.int8)
            if isinstance(a, T)
            else a
            for a in source.args
        ]

    point, deep = tensors(PLAIN[9]), tensors(DEPTHWISE[1])
    torch.testing.assert_close(conv(*point), torch.ops.et_vk.q8ta_conv2d_pw(*point))
    torch.testing.assert_close(depthwise(*deep), torch.ops.et_vk.q8ta_conv2d_dw(*deep))


def changed(case: Case, position: int, value) -> Case:
    return Case(case.op, (*case.args[:position], value, *case.args[position + 1 :]))


REFUSED = [
    (changed(PLAIN[0], 0, T((4, 5, 8), I8)), "'x' is arg0:int8[4, 5, 8], but must be [n, c, h, w]"),
    (changed(PLAIN[0], 9, [8, 8]), "a kernel of [8, 8] does not fit an input of [5, 8] with padding [1, 1]"),
    (changed(PLAIN[0], 13, 3), "weights [4, 36] in 3 groups do not fit the input [1, 4, 5, 8]"),
    (changed(PLAIN[0], 0, T((1, 8, 5, 8), I8)), "rows of 36 do not hold 8 channels of [3, 3]"),
    (changed(PLAIN[0], 14, "gelu"), "the activation 'gelu' is not one of none, relu"),
    (changed(DEPTHWISE[0], 13, 2), "weights [3, 3, 4] in 2 groups do not fit the input [1, 4, 5, 8]"),
]


@pytest.mark.parametrize("case, message", REFUSED, ids=str)
def test_refused(case, message):
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((1, 4, 5, 8), np.int8)])
    with pytest.raises(PtegpuError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"{case.op}: {message}"
