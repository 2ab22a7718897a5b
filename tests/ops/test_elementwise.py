"""Elementwise operators: every function over its domain and at its edges, every dtype, broadcasting, scalars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.cases import run_plan
from tests.oracle import Case, T, check, device, graph_of, plan_of, problem

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
INF, NAN = math.inf, math.nan
ANYTHING = (0.0, -1.5, 2.5, 1.0, -1.0, INF, -INF, NAN, 1e-20, -3e-8, 7e4)


def aten(name: str, *args: Any, **more: Any) -> Case:
    return Case(f"aten.{name}", args, **more)


def edge(*values: float, dtype: DType = F32) -> T:
    return T((len(values),), dtype, values=values)


DOMAINS = {  # function → interval, tolerance relative to the largest result, further values
    "abs": (-5, 5, 0, ANYTHING),
    "neg": (-5, 5, 0, ANYTHING),
    "sign": (-5, 5, 0, (0.0, 3.0, -3.0, INF, -INF)),
    "ceil": (-5, 5, 0, ANYTHING),
    "floor": (-5, 5, 0, ANYTHING),
    "trunc": (-5, 5, 0, ANYTHING),
    "round": (-5, 5, 0, (0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 8388609.0, INF, NAN)),
    "exp": (-20, 5, 1e-6, (-INF, INF, NAN, 0.0, -200.0)),
    "exp2": (-20, 5, 1e-6, (-INF, INF, NAN, 0.0, 10.0)),
    "expm1": (-2, 2, 5e-7, (-INF, INF, NAN, 0.0, 1e-6, -1e-6, -30.0, 0.5, -0.5)),
    "log": (1e-3, 1e3, 1e-6, (0.0, -1.0, INF, NAN, 1.0)),
    "log2": (1e-3, 1e3, 1e-6, (0.0, -1.0, INF, NAN, 1.0, 8.0)),
    "log10": (1e-3, 1e3, 1e-6, (0.0, -1.0, INF, NAN, 1.0, 1000.0)),
    "log1p": (-0.9, 2, 5e-7, (0.0, -1.0, -2.0, INF, NAN, 1e-6, -1e-6, 1e8)),
    "sqrt": (0, 1e3, 1e-6, (0.0, -1.0, INF, NAN, 4.0)),
    "rsqrt": (1e-2, 1e3, 1e-6, (-1.0, INF, NAN, 4.0)),
    "reciprocal": (0.1, 5, 1e-6, (-4.0, INF, -INF, NAN)),
    "sin": (-20, 20, 5e-7, (0.0, 1e-6, 1e3, -1e4, 9e4, INF, NAN)),
    "cos": (-20, 20, 5e-7, (0.0, 1e-6, 1e3, -1e4, 9e4, INF, NAN)),
    "tan": (-1.5, 1.5, 1e-6, (0.0, 1e-6, 3.0, 100.0, INF, NAN)),
    "asin": (-1, 1, 5e-7, (0.0, 1.0, -1.0, 1.5, -2.0, NAN, 0.5, 1e-6)),
    "acos": (-1, 1, 5e-7, (0.0, 1.0, -1.0, 1.5, -2.0, NAN, 0.5, 0.999999)),
    "atan": (-5, 5, 5e-7, (0.0, 1.0, -1.0, INF, -INF, NAN, 1e6, 1e-6)),
    "sinh": (-4, 4, 1e-6, (0.0, 1e-6, INF, -INF, NAN)),
    "cosh": (-4, 4, 1e-6, (0.0, 1e-6, INF, -INF, NAN)),
    "tanh": (-4, 4, 5e-7, (0.0, 1e-6, 50.0, -1e4, 1e38, INF, -INF, NAN)),
    "asinh": (-5, 5, 5e-7, (0.0, 1e-6, 1e12, -1e30, INF, -INF, NAN)),
    "acosh": (1, 5, 5e-7, (1.0, 0.5, -3.0, 1e12, 1e30, INF, NAN, 1.0001)),
    "atanh": (-0.99, 0.99, 5e-7, (0.0, 1.0, -1.0, 1.5, NAN, 1e-6, -0.9999)),
    "erf": (-4.5, 4.5, 5e-7, (0.0, 1e-6, 30.0, -30.0, 1.0, -1.0, INF, -INF, NAN)),
    "relu": (-5, 5, 0, (0.0, INF, -INF, NAN)),
    "relu6": (-5, 9, 0, (0.0, INF, -INF, NAN)),
    "sigmoid": (-9, 9, 5e-7, (0.0, 200.0, -200.0, INF, -INF, NAN)),
    "silu": (-9, 9, 5e-7, (0.0, 200.0, -60.0, NAN)),
    "mish": (-9, 9, 1e-6, (0.0, 200.0, -60.0, NAN)),
    "hardsigmoid": (-5, 5, 5e-7, (INF, -INF, NAN)),
    "hardswish": (-5, 5, 5e-7, (INF, NAN)),
    "gelu": (-5, 5, 5e-7, (0.0, 20.0, -20.0, NAN)),
}
EXACT = 1e-30  # practically no tolerance; 0 counts as unset

UNARY = [
    *(aten(f"{name}.default", T((517,), low=low, high=high), atol=atol or EXACT)
      for name, (low, high, atol, _) in DOMAINS.items()),
    *(aten(f"{name}.default", edge(*extra), atol=atol or EXACT) for name, (_, _, atol, extra) in DOMAINS.items()),
    *(aten(f"{name}.default", T((3, 7), F16, low=max(low, -8), high=min(high, 8)))
      for name, (low, high, _, _) in DOMAINS.items()),
    *(aten(f"{name}.default", T((3, 5), I32, low=-9, high=9))
      for name in ("abs", "neg", "sign", "relu", "relu6", "ceil", "floor", "trunc", "round")),
    aten("sign.default", T((7,), BOOL)),
    *(aten(f"{name}.default", T((999,), low=-1e9, high=1e9), atol=5e-7) for name in ("sin", "cos")),
    *(aten(f"{name}.default", edge(1e5, 1.1e5, -2e5, 1e10, -1e20, 1e30, 3.4e38), atol=5e-7)
      for name in ("sin", "cos", "tan")),
    *(aten("round.decimals", T((9,), d, low=-300, high=300), digits) for d in (F32, F16) for digits in (0, 1, -1, -2)),
    aten("round.decimals", edge(0.25, 0.75, -1.25, NAN, INF), 1),
    *(aten(f"{name}.default", T((7,), I8, low=-9, high=9)) for name in ("abs", "neg", "relu")),
    *(aten(f"{name}.default", T((5,), dtype, low=1, high=4))
      for name in ("exp", "sqrt", "sin", "sigmoid", "tanh", "reciprocal") for dtype in (I32, BOOL)),
    *(aten(f"{name}.default", x) for name in ("isnan", "isinf", "logical_not") for x in (
        edge(*ANYTHING), edge(*ANYTHING[:8], dtype=F16), T((6,), I32), T((6,), BOOL), T((2, 3), U8, low=0),
    )),
    *(aten("bitwise_not.default", T((2, 5), d, low=0)) for d in (I32, I8, U8, BOOL)),
    *(Case("ptegpu.round_to_bfloat16.default", (x,), lambda x: x.bfloat16().to(x.dtype), atol=EXACT) for x in (
        T((3, 7)), edge(1.00390625, 1.01171875, -1.00390625, 3.4e38, INF, -INF, NAN, 0.0, -0.0), T((2, 8), F16),
    )),
    aten("gelu.default", T((2, 65), low=-5, high=5), "tanh", atol=5e-7),
    aten("gelu.default", edge(0.0, 60.0, -60.0, NAN), "tanh"),
    aten("gelu.default", T((9,), F16), "tanh"),
    *(aten("leaky_relu.default", x, *slope)
      for x in (T((9,)), edge(0.0, NAN, INF, -INF), T((6,), F16)) for slope in ((), (0.2,), (1,))),
    *(aten("elu.default", T((33,), low=-6, high=6), *more) for more in ((), (0.5,), (1.67, 1.05), (1.0, 1, 0.5))),
    aten("elu.default", edge(1e-6, -1e-6, -INF, NAN, 100.0)),
    *(aten("softplus.default", T((33,), low=-9, high=9), *more, atol=1e-6) for more in ((), (2, 5), (0.5, 1.0))),
    aten("softplus.default", edge(100.0, -100.0, 21.0, NAN)),
    *(aten("hardshrink.default", T((33,)), *more, atol=EXACT) for more in ((), (1,), (0.0,))),
    aten("hardshrink.default", edge(0.5, -0.5, NAN, INF, 0.51)),
]  # fmt: skip

SHAPES = [
    ((), ()), ((1,), ()), ((5,), ()), ((4,), (1,)), ((3, 4), (4,)), ((3, 5), (5,)), ((3, 1), (1, 5)),
    ((2, 3, 8), (3, 1)), ((2, 1, 4), (3, 1)), ((7, 1), (1, 4)), ((1, 1, 1), (2, 3, 4)), ((2, 3, 4, 5), (3, 1, 5)),
    ((0, 3), (3,)), ((0,), (1,)),
    ((2, 1, 2, 1, 2, 1, 2, 1), (1, 2, 1, 3, 1, 2, 1, 2)), ((1025,), (1025,)), ((9, 128), (128,)), ((33, 31), (33, 1)),
]  # fmt: skip

QUOTIENTS = T((40,), low=-30, high=30), T((40,), low=0.5, high=7)
WHOLE = T((40,), I32, low=-30, high=30), T((40,), I32, low=1, high=7)
NEGATIVE = edge(7, -7, 7, -7, 6, -6, 6, -6, 0, 5, 5), edge(3, 3, -3, -3, 3, 3, -3, -3, 2, INF, -INF)
NEGATIVE_I = edge(7, -7, 7, -7, 6, -6, 6, -6, 0, dtype=I32), edge(3, 3, -3, -3, 3, 3, -3, -3, 2, dtype=I32)
LARGE_QUOTIENTS = T((400,), low=-1e9, high=1e9), T((400,), low=0.25, high=9)
APART = edge(1e30, -1e38, 7.3e20, 1e10, 123456789.0, 3e38), edge(3.75, 1.1e-5, -2.25, 0.1, 7.0, 1e-36)
DIVISIONS = [
    ("fmod.Tensor",),
    ("remainder.Tensor",),
    ("floor_divide.default",),
    ("div.Tensor_mode", "floor"),
    ("div.Tensor_mode", "trunc"),
]

BINARY = [
    *(aten("add.Tensor", T(a), T(b), 1) for a, b in SHAPES),
    *(aten("sub.Tensor", T(b, I32), T(a, I32), 3) for a, b in SHAPES[:9]),
    *(aten("logical_xor.default", T(a, BOOL), T(b, BOOL)) for a, b in SHAPES[:9]),
    *(aten("mul.Tensor", T(a, F16), T(b, F16)) for a, b in SHAPES[:9]),
    *(aten(f"{name}.Tensor", T((2, 9), d, low=1, high=9), T((9,), d, low=1, high=9), *alpha)
      for name, alpha in (("add", (2,)), ("sub", (2,)), ("rsub", (2,)), ("mul", ())) for d in (F32, F16, I32, I8, U8)),
    *(aten(f"{name}.Scalar", T((2, 9), d, low=1, high=9), 3, *alpha)
      for name, alpha in (("add", (2,)), ("sub", (2,)), ("rsub", (2,)), ("mul", ()), ("fmod", ()), ("remainder", ()))
      for d in (F32, F16, I32, I8, U8)),
    *(aten(f"{name}.Scalar", T((2, 9)), 2.5)
      for name in ("add", "sub", "rsub", "mul", "div", "fmod", "remainder", "floor_divide")),
    *(aten(f"{name}.Scalar", T((2, 9), I32, low=-9, high=9), 2.5)
      for name in ("add", "mul", "div", "fmod", "remainder")),
    *(aten(f"{name}.Scalar", T((12,), I8, low=-128, high=128), y)  # the scalar wraps first
      for name in ("fmod", "remainder", "floor_divide") for y in (300, -200)),
    *(aten(f"{name}.Scalar", T((12,), U8, low=0, high=256), y)
      for name in ("add", "mul", "fmod", "floor_divide") for y in (-3, 1000)),
    *(aten("div.Scalar_mode", T((12,), U8, low=0, high=256), -3, mode) for mode in ("floor", "trunc")),
    *(aten(name, T((), I32, low=-(2**31), high=2**31 - 1), T((9,), d, low=0, high=127))  # so does a tensor of rank 0
      for name in ("minimum.default", "maximum.default", "lt.Tensor", "ge.Tensor", "add.Tensor") for d in (I8, U8)),
    *(aten(name, T((9,), I8, low=-128, high=127), T((), U8, low=128, high=255))
      for name in ("minimum.default", "maximum.default", "eq.Tensor", "gt.Tensor")),
    aten("add.Tensor", T((6,), BOOL), T((6,), BOOL), 1),
    aten("mul.Tensor", T((6,), BOOL), T((6,), BOOL)),
    aten("add.Tensor", T((6,), I32), T((6,)), 1.5),
    aten("mul.Tensor", T((6,), BOOL), T((6,), F16)),
    aten("mul.Tensor", T((6,), I32, low=-(2**31), high=2**31 - 1), T((6,), I32, low=-99, high=99), note="wraps"),
    aten("div.Tensor", T((2, 6)), T((6,), low=0.5)),
    aten("div.Tensor", T((2, 6), F16), T((6,), F16, low=0.5)),
    aten("div.Tensor", T((2, 6), I32, low=-9, high=9), T((6,), I32, low=1, high=9)),
    aten("div.Tensor", edge(1.0, -1.0, 0.0, NAN), edge(0.0, 0.0, 0.0, 1.0)),
    aten("div.Scalar", T((5,), I32), 4),
    aten("div.Tensor_mode", *QUOTIENTS, None),
    aten("div.Scalar_mode", QUOTIENTS[0], 2.5, "floor"),
    aten("div.Scalar_mode", WHOLE[0], 4, "trunc"),
    *(aten(name, *pair, *mode) for name, *mode in DIVISIONS for pair in (QUOTIENTS, WHOLE, NEGATIVE, NEGATIVE_I)),
    *(aten(f"{name}.Tensor", *pair, atol=EXACT) for name in ("fmod", "remainder") for pair in (LARGE_QUOTIENTS, APART)),
    aten("fmod.Tensor", T((9,), F16, low=1, high=2), T((9,), F16, low=3, high=4)),
    aten("floor_divide.default", edge(1.0, -1.0, 0.0, INF), edge(0.0, 0.0, 0.0, 2.0)),
    aten("remainder.Scalar_Tensor", 7, T((9,), low=0.5)),
    *(aten(f"{name}.default", T((3, 1), d), T((4,), d))
      for name in ("minimum", "maximum") for d in (F32, F16, I32, I8, BOOL)),
    *(aten(f"{name}.default", edge(NAN, 1.0, NAN, INF, 0.0), edge(1.0, NAN, NAN, -INF, 1.0))
      for name in ("minimum", "maximum")),
    aten("atan2.default", T((50,)), T((50,)), atol=5e-7),
    aten("hypot.default", T((50,)), T((50,)), atol=5e-7),
    aten("hypot.default", T((5, 1), F16), T((4,), F16)),
    aten("hypot.default", edge(3e30, INF, NAN, 0.0, 1e-30, 1.0), edge(4e30, NAN, 1.0, 0.0, 1e-30, -INF)),
    *(aten(f"{name}.other", T((3, 4), d), T((4,), d)) for name in ("max", "min") for d in (F32, I32)),
    aten("atan2.default", edge(0.0, 1.0, -1.0, 0.0, 0.0, INF, INF, NAN, 1.0, 2.0),
         edge(1.0, 0.0, 0.0, -1.0, 0.0, INF, -INF, 1.0, NAN, INF)),
    *(aten(f"{name}.Tensor", T((3, 5), d, low=0, high=99), T((5,), d, low=0, high=99))
      for name in ("bitwise_and", "bitwise_or", "bitwise_xor") for d in (I32, U8, BOOL)),
    *(aten(f"{name}.Scalar", T((3, 5), I32, low=-99, high=99), 12)
      for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    *(aten(f"{name}.default", x, y) for name in ("logical_and", "logical_or", "logical_xor") for x, y in (
        (T((9,), BOOL), T((9,), BOOL)), (T((9,), I32), T((9,), I32)),
        (edge(0.0, NAN, 1.0, 0.0), edge(1.0, 0.0, NAN, -0.0)),
    )),
]  # fmt: skip

POWERS = [
    aten("pow.Tensor_Tensor", T((40,), low=0.1, high=4), T((40,), low=-3, high=3), atol=2e-6),
    aten("pow.Tensor_Tensor", T((2, 9), low=-3, high=3), T((9,), values=(-3, -2, -1, 0, 1, 2, 3, 4, 5)), atol=1e-5),
    aten("pow.Tensor_Tensor", edge(0.0, 0.0, 0.0, -2.0, NAN, 1.0, INF, -INF, 2.0, NAN, 0.5),
         edge(2.0, 0.0, -1.0, 0.5, 2.0, NAN, 2.0, 3.0, -INF, 0.0, INF)),
    aten("pow.Tensor_Tensor", edge(-INF, -INF, -INF, -INF, -INF), edge(1.5, -1.5, 2.0, -3.0, 0.0)),
    aten("pow.Tensor_Tensor", edge(-1.0, -1.0, -0.0, -0.0, -0.0, -0.0), edge(INF, -INF, -3.0, -2.0, 3.0, -0.5)),
    aten("pow.Tensor_Scalar", edge(-INF, INF, -1.0), 1.5),
    *(aten("pow.Tensor_Scalar", edge(-INF, -0.0, 4.0, -1.0), e) for e in (0.5, -0.5, -3)),
    *(aten("pow.Tensor_Scalar", edge(-INF, -0.0, 4.0, -1.0, dtype=F16), e, reference=lambda x, e: x.half().pow(e))
      for e in (0.5, -0.5, -3)),
    aten("pow.Tensor_Tensor", T((9,), F16, low=0.5), T((9,), F16)),
    aten("pow.Tensor_Tensor", T((9,), I32, low=-5, high=6), T((9,), I32, low=0, high=6)),
    aten("pow.Tensor_Tensor", edge(1, -1, -1, 2, -3, dtype=I32), edge(-2, -2, -3, -1, -1, dtype=I32)),
    *(aten("pow.Tensor_Scalar", T((9,), low=0.2), e, atol=2e-6)
      for e in (-2, -1, -0.5, 0, 0.5, 1, 1.7, 2, 3, 4, 5, -3.0)),
    *(aten("pow.Tensor_Scalar", T((9,), low=-3, high=-0.2), e, atol=2e-6) for e in (2, 3, 5, -3, 0)),
    *(aten("pow.Tensor_Scalar", T((9,), I32, low=-3, high=4), e) for e in (0, 1, 2, 3, 0.5)),
    aten("pow.Tensor_Scalar", T((9,), F16), 2),
    aten("pow.Tensor_Scalar", T((9,), BOOL), True),
    *(aten("pow.Scalar", b, T((9,)), atol=2e-6) for b in (2, 10000.0, 0.5, 1)),
    aten("pow.Scalar", 3, T((6,), I32, low=0, high=5)),
]  # fmt: skip

COMPARED = [
    (T((3, 4)), T((4,))), (T((3, 1), I32), T((1, 5), I32)), (T((6,), BOOL), T((6,), BOOL)),
    (T((6,), F16), T((), F16)), (T((6,), I32), T((6,))), (T((9,), U8, low=0), T((9,), U8, low=0)),
    (edge(NAN, 1.0, 0.0, INF), edge(NAN, NAN, -0.0, INF)),
]  # fmt: skip
HALVES = {  # PyTorch rounds the scalar too
    "eq": lambda x, y: x.half().eq(y),
    "ne": lambda x, y: x.half().ne(y),
    "lt": lambda x, y: x.half().lt(y),
    "ge": lambda x, y: x.half().ge(y),
}
COMPARE = [
    *(aten(f"{name}.Tensor", *pair) for name in ("eq", "ne", "lt", "le", "gt", "ge") for pair in COMPARED),
    *(aten(f"{name}.Scalar", x, y) for name in ("eq", "ne", "lt", "le", "gt", "ge") for x, y in (
        (T((9,)), 0.5), (T((9,), I32), 1), (T((9,), I32), 0.5), (T((9,), I32), 2**40), (T((9,), I32), 1.0),
        (T((9,), BOOL), 1), (edge(NAN, 1.0), 1), (T((9,)), INF),
        (edge(2**31 - 1, -(2**31), dtype=I32), 2**31), (T((99,), I8, low=-128, high=128), 300),
        (T((99,), U8, low=0, high=256), -3),
    )),
    *(aten(f"{name}.Scalar", edge(0.1, 0.2, NAN, dtype=F16), 0.1, reference=lambda x, y, name=name: HALVES[name](x, y))
      for name in HALVES),
]  # fmt: skip

CHOICE = [
    aten("where.self", T((3, 4), BOOL), T((4,)), T((3, 1))),
    aten("where.self", T((), BOOL), T((5,), F16), T((), F16)),
    *(aten("where.self", T((7, 3), BOOL), T((3,), d), T((7, 3), d)) for d in (F32, F16, I32, I8, U8, BOOL)),
    aten("where.self", T((4,), BOOL), edge(NAN, INF, 1.0, 2.0), T((4,))),
    aten("where.self", T((4,), U8, low=0), T((4,)), T((4,))),
    aten("where.self", T((4,), BOOL), T((4,), I32), T((4,))),
    aten("where.ScalarSelf", T((4,), BOOL), 2, T((4,))),
    aten("where.ScalarSelf", T((4,), BOOL), -INF, T((4,))),
    aten("where.ScalarOther", T((3, 4), BOOL), T((4,), I32, -99, 99), 7),
    aten("where.Scalar", T((4,), BOOL), 1.5, 2.5),
    aten("where.Scalar", T((4,), BOOL), 1, 0),
    aten("masked_fill.Scalar", T((3, 4)), T((4,), BOOL), -INF),
    aten("masked_fill.Scalar", T((3, 4), I32), T((3, 1), BOOL), 5),
    aten("masked_fill.Tensor", T((3, 4)), T((3, 4), BOOL), T(())),
    *(aten("clamp.default", T((9,), d, low=-9, high=9), *bounds) for d in (F32, F16, I32, I8)
      for bounds in ((-2, 3), (None, 3), (-2, None), (3, -2))),
    aten("clamp.default", edge(NAN, INF, -INF, 0.5), -1.0, 1.0),
    aten("clamp.default", T((9,), I32, low=-9, high=9), 0, 2**63 - 1),
    *(aten("clamp.default", T((99,), U8, low=0, high=256), *bounds) for bounds in ((2, -2), (-200, 200), (None, 7))),
    aten("clamp.default", T((9,), I32, low=-9, high=9), -1.5, 2.5),
    aten("clamp.Tensor", T((3, 4)), T((4,)), T((3, 1))),
    aten("clamp.Tensor", T((3, 4), I32), T((4,), I32), None),
    aten("clamp.Tensor", T((3, 4)), None, T((3, 1))),
    aten("clamp.Tensor", edge(NAN, 1.0, 1.0), edge(0.0, NAN, 0.0), edge(2.0, 2.0, NAN)),
    aten("hardtanh.default", T((9,))),
    aten("hardtanh.default", T((9,), low=-9, high=9), 0, 6),
    aten("hardtanh.default", edge(NAN, INF, -INF), 0.0, 1.0),
]  # fmt: skip

LIVE = [
    aten("add.Tensor", T((3, 5), limit=(9, 8)), T((5,), limit=(8,)), 1),
    aten("mul.Tensor", T((0, 4), limit=(7, 4)), T((4,))),
    aten("exp.default", T((2, 3), F16, limit=(40, 40))),
    aten("where.self", T((1, 6), BOOL, limit=(4, 7)), T((1, 6), limit=(4, 7)), T((6,), limit=(7,))),
]

CASES = [*UNARY, *BINARY, *POWERS, *COMPARE, *CHOICE, *LIVE]

BENCHMARKS = [  # at real sizes
    aten("add.Tensor", T((4096, 4096)), T((4096, 4096)), 1),
    aten("add.Tensor", T((4096, 8192), F16), T((4096, 8192), F16), 1),
    aten("mul.Tensor", T((4096, 4096)), T((4096,))),
    aten("mul.Tensor", T((4096, 4096)), T((4096, 1))),
    aten("div.Tensor", T((4096, 4096)), T((4096, 4096), low=1)),
    aten("gelu.default", T((4096, 4096)), "none"),
    aten("gelu.default", T((4096, 8192), F16), "tanh"),
    aten("sigmoid.default", T((4096, 4096))),
    aten("exp.default", T((4096, 4096))),
    aten("pow.Tensor_Scalar", T((4096, 4096)), 2),
    aten("gt.Scalar", T((4096, 4096)), 0.5),
    aten("where.self", T((4096, 4096), BOOL), T((4096, 4096)), T((4096, 4096))),
    aten("clamp.default", T((4096, 4096)), -1.0, 1.0),
]
BROWSER = [c for c in CASES if any(isinstance(a, T) and a.dtype in (F16, I8, U8, BOOL) for a in c.args)][::3]


def test_many_groups() -> None:
    check(aten("add.Tensor", T((700, 4)), T((4,)), 1), max_invocations=2, max_groups=19)


def refused(case: Case, out: np.ndarray) -> str:
    """Return the error of planning a case whose declared output is like `out`."""
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [out])
    with pytest.raises(ShapeError) as error:
        plan_of(graph, device().target)
    return str(error.value)


@pytest.mark.parametrize(
    ("case", "dtype", "text"),
    [
        (aten("div.Scalar", T((2,), I32), 2), np.int32, "aten.div.Scalar: aten.div is not defined for int32"),
        (aten("neg.default", T((2,), BOOL)), np.bool_, "aten.neg.default: aten.neg.default is not defined for bool"),
        (aten("add.Tensor", T((2,)), T((3,)), 1), np.float32, "aten.add.Tensor: shapes [2], [3] do not broadcast"),
        (
            aten("div.Tensor_mode", T((2,)), T((2,)), "up"),
            np.float32,
            "aten.div.Tensor_mode: invalid rounding mode 'up': expected floor, trunc or None",
        ),
        (
            aten("gelu.default", T((2,)), "sin"),
            np.float32,
            "aten.gelu.default: invalid approximation 'sin' of gelu: expected none or tanh",
        ),
        (
            aten("clamp.Tensor", T((2,)), None, None),
            np.float32,
            "aten.clamp.Tensor: clamp needs a minimum or a maximum",
        ),
    ],
    ids=str,
)
def test_refusals(case: Case, dtype: type, text: str) -> None:
    assert refused(case, np.zeros(2, dtype)) == text


def test_scalar_out_of_range() -> None:
    case = aten("add.Scalar", T((2,), I32), 2**40, 1)
    arrays = {id(case.args[0]): np.zeros(2, np.int32)}
    graph, _ = graph_of(case, arrays, [np.zeros(2, np.int32)])
    with pytest.raises(ValueError) as error:
        plan_of(graph, device().target)
    assert str(error.value) == "aten.add.Scalar: the scalar 1099511627776 does not fit int32"


KEEPS_ZERO = ("relu", "relu6", "tanh", "expm1", "sinh", "log1p", "neg", "abs", "sqrt", "floor", "ceil", "trunc", "silu")


@pytest.mark.parametrize("name", KEEPS_ZERO)
def test_the_sign_of_zero_is_kept(name: str) -> None:
    (expected,), (actual,) = both(aten(f"{name}.default", edge(-0.0, 0.0, 1.0)))
    np.testing.assert_array_equal(np.signbit(expected), np.signbit(actual))


def test_a_power_of_one_is_the_number_itself() -> None:
    largest = float(np.finfo(np.float32).max)
    case = aten("pow.Tensor_Tensor", edge(largest, -largest, 1.5, -0.0), edge(1.0, 1.0, 1.0, 1.0))
    (expected,), (actual,) = both(case)
    np.testing.assert_array_equal(expected, actual)
    np.testing.assert_array_equal(np.signbit(expected), np.signbit(actual))


def both(case: Case) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return PyTorch's float32 results of a case and the adapter's."""
    solved = problem(case)
    graph, arrays = graph_of(case, solved.arrays, solved.eager)
    return list(solved.eager), run_plan(plan_of(graph, device().target, arrays), arrays, device())
