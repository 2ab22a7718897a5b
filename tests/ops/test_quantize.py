"""Quantisation: both directions at every granularity, odd sizes, blocks, choice of parameters, fused int8 operators."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from tests.oracle import Case, T, check, graph_of, plan_of, torch_operator

from ptegpu.dtypes import DType
from ptegpu.errors import PtegpuError
from ptegpu.plan.target import Target

F16, F32, I32, I8, U8 = DType.F16, DType.F32, DType.I32, DType.I8, DType.U8
TYPES = {I8: (torch.int8, -128, 127), U8: (torch.uint8, 0, 255), I32: (torch.int32, -(2**20), 2**20)}


def in_f32(name: str, at: int | None, dtype: torch.dtype):
    """Return PyTorch's operator on f32 inputs; argument `at` becomes `dtype`, which a delegate leaves as Null."""

    def reference(*args):
        operands = [a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
        if at is not None:
            operands[at] = dtype
        return torch_operator(name)(*operands)

    return reference


def case(name: str, args, at: int | None = None, dtype: torch.dtype = torch.int8, **more) -> Case:
    return Case(name, args, in_f32(name, at, dtype), **more)


def per_tensor(x: T, scale: float, zero: int, to: DType = I8) -> Case:
    dtype, low, high = TYPES[to]
    return case("quantized_decomposed.quantize_per_tensor.default", (x, scale, zero, low, high, None), 5, dtype)


def back(x: T, scale: float, zero: int) -> Case:
    dtype, low, high = TYPES[x.dtype]
    return case("quantized_decomposed.dequantize_per_tensor.default", (x, scale, zero, low, high, None), 5, dtype)


def ints(*shape: int, dtype: DType = I8) -> T:
    return T(shape, dtype, *TYPES[dtype][1:])


def scales(*shape: int) -> T:
    return T(shape, low=0.01, high=0.1, constant=True)


def zeros(*shape: int, dtype: DType = I32) -> T:
    return T(shape, dtype, -5, 6, constant=True)


PER_TENSOR = [
    *(per_tensor(T(shape, low=-3, high=3), 0.03125, 3) for shape in [(5,), (), (0,), (3, 7), (2, 3, 4, 5), (1030,)]),
    per_tensor(T((9,), low=-30, high=30), 0.1, -100),
    per_tensor(T((9,), low=-30, high=300), 1, 7, U8),
    per_tensor(T((9,), F16, low=-30, high=30), 0.25, 7),
    per_tensor(T((6,), values=(0.5, 1.5, 2.5, -0.5, -1.5, -2.5)), 1, 0),
    per_tensor(T((9,), low=-30, high=30), 0.001, 7, I32),
    *(back(ints(*shape), 0.03125, 3) for shape in [(5,), (), (0,), (3, 7), (2, 3, 4, 5), (1030,)]),
    back(ints(7, dtype=U8), 0.1, 128),
    Case(
        "quantized_decomposed.dequantize_per_tensor.default",
        (ints(7, dtype=I32), 1, -1, -(2**20), 2**20, None),
        lambda x, scale, zero, *_: (x - zero) * float(scale),
    ),
    case(
        "quantized_decomposed.quantize_per_tensor.tensor",
        (T((3, 5), low=-3, high=3), scales(1), zeros(1), -128, 127, None),
        5,
    ),
    case(
        "quantized_decomposed.quantize_per_tensor.tensor",
        (T((3, 5), low=0, high=3), scales(), zeros(), 0, 255, None),
        5,
        torch.uint8,
    ),
    case("quantized_decomposed.dequantize_per_tensor.tensor", (ints(3, 5), scales(1), zeros(1), -128, 127, None), 5),
]

PER_CHANNEL = [
    *(
        case(
            "quantized_decomposed.quantize_per_channel.default",
            (T((3, 4, 5), low=-3, high=3), scales((3, 4, 5)[axis]), zeros((3, 4, 5)[axis]), axis, -128, 127, None),
            6,
        )
        for axis in (0, 1, 2)
    ),
    *(
        case(
            "quantized_decomposed.dequantize_per_channel.default",
            (ints(3, 4, 8), scales((3, 4, 8)[axis]), zeros((3, 4, 8)[axis]), axis, -128, 127, None),
            6,
        )
        for axis in (0, 1, 2)
    ),
    case("quantized_decomposed.dequantize_per_channel.default", (ints(3, 5), scales(3), None, 0, -128, 127, None), 6),
    case("quantized_decomposed.quantize_per_token.default", (T((3, 7)), scales(3, 1), zeros(3, 1), -128, 127, None), 5),
    case(
        "quantized_decomposed.quantize_per_token.default",
        (T((2, 3, 8), F16), scales(2, 3, 1), zeros(2, 3, 1), -128, 127, None),
        5,
    ),
    Case(
        "quantized_decomposed.dequantize_per_token.default",
        (ints(2, 3, 7), scales(2, 3, 1), zeros(2, 3, 1), -128, 127, None, None),
        lambda x, s, z, *_: (x - z) * s,
    ),
]


def affine(shape, block, counts, *, zero=I32, back=False, to=I8) -> Case:
    dtype, low, high = TYPES[to]
    name = f"torchao.{'de' if back else ''}quantize_affine.default"
    x = ints(*shape) if back else T(shape)
    z = zeros(*counts, dtype=zero) if zero else None
    args = (x, block, scales(*counts), z, None, low, high, *([torch.float32] if back else []))

    def reference(x, block, scale, zero, *_):
        import torchao  # noqa: F401

        zero = torch.zeros_like(scale, dtype=torch.int32) if zero is None else zero
        if back:
            return torch.ops.torchao.dequantize_affine(x, block, scale.float(), zero, dtype, low, high)
        return torch.ops.torchao.quantize_affine(x.float(), block, scale.float(), zero, dtype, low, high)

    return Case(name, args[:-1] + (None,) if back else args, reference)


AFFINE = [
    affine((3, 8), [1, 8], (3,)),
    affine((3, 8), [1, 4], (3, 2)),
    affine((6, 10), [3, 5], (2, 2), zero=I8),
    affine((2, 3, 6), [1, 1, 6], (2, 3)),
    affine((2, 3, 6), [2, 3, 6], ()),
    affine((4, 7), [4, 1], (7,), zero=None),
    affine((4, 7), [1, 1], (4, 7), to=U8),
    affine((3, 8), [1, 8], (3,), back=True),
    affine((3, 8), [1, 4], (3, 2), back=True),
    affine((6, 10), [3, 5], (2, 2), back=True, zero=I8),
    affine((4, 7), [4, 1], (7,), back=True, zero=None),
]


def choice(shape, block, mapping="ASYMMETRIC", *, low=-2.0, high=2.0, dtype=F32, eps=None, keepdim=False, zero=I32):
    def reference(x, *_):
        import torchao  # noqa: F401

        options = (torch.int8, -128, 127, eps, torch.float32, getattr(torch, zero.value))
        return torch.ops.torchao.choose_qparams_affine(x.float(), mapping, block, *options, keepdim)

    args = (T(shape, dtype, low, high), mapping, block, None, -128, 127, eps, None, None, keepdim)
    return Case("torchao.choose_qparams_affine.default", args, reference)


def tokens(*shape: int, low: float = -2.0, high: float = 2.0) -> Case:
    return case(
        "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
        (T(shape, low=low, high=high), None),
        1,
    )


CHOICES = [
    choice((3, 8), [1, 8]),
    choice((1, 7), [1, 7]),
    choice((70, 33), [1, 33]),
    choice((2, 5, 1100), [1, 1, 1100]),
    choice((3, 8), [1, 8], zero=I8),
    choice((3, 8), [1, 4]),
    choice((3, 8), [1, 4], keepdim=True),
    choice((6, 10), [3, 5]),
    choice((6, 10), [6, 1], keepdim=True),
    choice((5, 6), [5, 6]),
    choice((3, 8), [1, 8], low=1.0),
    choice((3, 8), [1, 8], high=-1.0),
    choice((3, 8), [1, 8], low=0.0, high=1e-30, eps=1e-5),
    choice((0, 8), [1, 8]),
    choice((3, 8), [1, 8], "SYMMETRIC"),
    choice((3, 8), [1, 8], "SYMMETRIC_NO_CLIPPING_ERR"),
    choice((3, 8), [1, 8], dtype=F16),
    tokens(3, 8),
    tokens(2, 3, 7, low=1.0),
    tokens(2, 300, high=-1.0),
    *(
        case("quantized_decomposed.choose_qparams.tensor", (T(shape), -128, 127, 1e-7, None), 4)
        for shape in [(5,), (3, 7), (2, 20000), ()]
    ),
    case("quantized_decomposed.choose_qparams.tensor", (T((5,), low=0), 0, 255, 1e-7, None), 4, torch.uint8),
]


def q(dq: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
    return torch.clamp(torch.round(dq * (1.0 / scale)) + zero, -128, 127).to(torch.int8)


def added(a, b, sa, za, sb, zb, so, zo, alpha):
    return q((a.float() - za) * sa + alpha * ((b.float() - zb) * sb), so, zo)


def relu(x, si, zi, so, zo):
    return q(torch.relu((x.float() - zi) * si), so, zo)


def shuffled(x, si, zi, inverse, zo, r):
    return q(torch.nn.functional.pixel_shuffle((x.float() - zi) * si, r), 1.0 / inverse, zo)


FUSED = [
    *(
        Case("et_vk.q8ta_add.default", (ints(*a), ints(*b), 0.5, 3, 0.25, -4, 1, 1, alpha), added)
        for a, b in [((3, 7), (3, 7)), ((1, 2, 3, 5), (1, 2, 3, 5)), ((2, 4), (4,)), ((0, 4), (0, 4)), ((), ())]
        for alpha in (1, 2.0)
    ),
    *(Case("et_vk.q8ta_relu.default", (ints(*s), 0.5, 3, 1, -128), relu) for s in [(3, 7), (1, 2, 3, 4), (0,), ()]),
    *(
        Case("et_vk.q8ta_pixel_shuffle.default", (ints(*s), 0.5, 3, inverse, zo, r), shuffled)
        for s, r in [((1, 4, 3, 3), 2), ((2, 9, 2, 4), 3), ((8, 3, 5), 2), ((1, 3, 2, 2), 1), ((0, 4, 2, 2), 2)]
        for inverse, zo in [(2, 3), (1.0, -7)]
    ),
]

CASES = [*PER_TENSOR, *PER_CHANNEL, *AFFINE, *CHOICES, *FUSED]

BENCHMARKS = [  # at real sizes
    per_tensor(T((4096, 4096), low=-3, high=3), 0.03125, 3),
    back(ints(4096, 4096), 0.03125, 3),
    tokens(4096, 2048),
]
BROWSER = [*PER_TENSOR[::4], *PER_CHANNEL[::3], *AFFINE[::3], *CHOICES[::3], *FUSED[::5]]


@pytest.mark.parametrize("s", [0, 1, 3])
def test_live_rows(s):
    at_most = choice((s, 8), [1, 8])
    check(Case(at_most.op, (T((s, 8), limit=(3, 8)), *at_most.args[1:]), at_most.reference))


def test_references_of_fused_operators_are_those_of_the_wheel():
    import executorch.backends.vulkan.custom_ops_lib  # noqa: F401

    a, b = (torch.randint(-128, 128, (1, 4, 6, 6), dtype=torch.int8) for _ in range(2))
    args = (a, b, 0.5, 3, 0.25, -4, 0.75, 1, 1.0)
    torch.testing.assert_close(added(*args), torch.ops.et_vk.q8ta_add(*args))
    torch.testing.assert_close(relu(a, 0.5, 3, 0.3, 1), torch.ops.et_vk.q8ta_relu(a, 0.5, 3, 0.3, 1))
    args = (a, 0.5, 3, 2.0, -1, 2)
    torch.testing.assert_close(shuffled(*args), torch.ops.et_vk.q8ta_pixel_shuffle(*args))


channels = partial(Case, "quantized_decomposed.dequantize_per_channel.default")
REFUSED = [
    (channels((ints(3, 4), T((3,)), None, 1, -128, 127, None)), "3 scales or zero points do not fit 4 channels"),
    (
        Case("torchao.quantize_affine.default", (T((3, 4)), [1, 3], T((3,)), None, None, -128, 127)),
        "blocks of [1, 3] do not fit the shape [3, 4]",
    ),
    (
        Case("torchao.choose_qparams_affine.default", (T((3, 4)), "ROUND", [1, 4], None)),
        "the mapping type 'ROUND' is not supported",
    ),
    (
        Case("et_vk.q8ta_pixel_shuffle.default", (ints(1, 3, 4, 4), 1.0, 0, 1.0, 0, 2)),
        "[1, 3, 4, 4] cannot be shuffled by 2",
    ),
]


@pytest.mark.parametrize("case, message", REFUSED, ids=str)
def test_refused(case, message):
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in case.args if isinstance(a, T)}
    outs = [np.zeros((3, 4), np.float32)] * (2 if "choose" in case.op else 1)
    graph, _ = graph_of(case, arrays, outs)
    with pytest.raises(PtegpuError) as raised:
        plan_of(graph, Target())
    assert str(raised.value) == f"{case.op}: {message}"
