from __future__ import annotations

import math

import numpy as np
import torch
from tests.portable.harness import BIG, INF, NAN, Case, b, case, f, i, positive, t

from ptegpu.portable.elementwise import erf

SPECIAL = t([NAN, INF, -INF, 0.0, -0.0, 0.5, -2.5, 1e30])
HALF, DOUBLE, BFLOAT = torch.float16, torch.float64, torch.bfloat16
FLOAT_UNARY = [
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "log", "log10", "log1p"),
    *("log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
    *("gelu", "elu", "leaky_relu", "logit", "silu", "relu", "hardtanh"),
]
WITHOUT_INTEGERS = {"gelu", "elu", "leaky_relu", "silu"}
COMPARISONS = ["eq", "ge", "gt", "le", "lt", "ne"]

CASES: list[Case] = [
    *(case(f"{n}.default", x) for n in FLOAT_UNARY for x in (f(2, 3), f(), f(0, 3), f(5, dtype=DOUBLE))),
    *(case(f"{n}.default", SPECIAL) for n in FLOAT_UNARY if n != "gelu"),  # its infinity depends on the vector width
    *(case(f"{n}.default", f(2, 3, dtype=d)) for n in FLOAT_UNARY for d in (HALF, BFLOAT)),
    *(case(f"{n}.default", i(2, 3, dtype=torch.int32)) for n in FLOAT_UNARY if n not in WITHOUT_INTEGERS),
    *(case(f"{n}.default", b(2, 3)) for n in ("cos", "exp", "sigmoid", "sqrt")),
    case("exp.default", t([BIG, -1])),
    case("gelu.default", f(3, 4), "tanh"),
    case("gelu.default", SPECIAL[5:], "tanh"),
    case("elu.default", f(3, 4), 0.5, 2.0, 3),
    case("leaky_relu.default", f(3, 4), 0.2),
    case("hardtanh.default", f(3, 4), -0.5, 0.25),
    case("hardtanh.default", i(3, 4), -2, 3),
    case("logit.default", torch.rand(7), 0.1),
    *(
        case(f"{n}.default", x)
        for n in ("abs", "neg", "sign", "relu", "_conj_physical", "ceil", "floor", "round", "trunc")
        for x in (f(2, 3), f(), f(0), SPECIAL, t([BIG, -BIG, -1, 0]), f(4, dtype=HALF), f(4, dtype=BFLOAT))
    ),
    case("round.default", t([0.5, 1.5, 2.5, -0.5, -1.5])),
    case("neg.default", t([0, 1, 200], torch.uint8)),
    case("abs.default", t([-(2**63), -1])),
    *(case(f"{n}.default", x) for n in ("isinf", "isnan", "logical_not") for x in (SPECIAL, i(3), b(2, 2), f())),
    *(case("bitwise_not.default", x) for x in (i(3), b(3), t(BIG), i(4, low=0, dtype=torch.uint8))),
    *(
        case(f"{n}.Tensor", x, y)
        for n in ("add", "sub", "mul", "div", *COMPARISONS)
        for x, y in (
            (f(2, 3), f(3)),
            (f(2, 1, 3), f(4, 1)),
            (f(), f()),
            (f(2, 3), t(2)),
            (i(2, 3), f(3)),
            (i(2, 3, dtype=torch.int32), i(3)),
            (i(3, low=0, dtype=torch.uint8), i(3, dtype=torch.int8)),
            (i(3, dtype=torch.int32), t(2.5)),
            (i(3, dtype=torch.int8), t(300)),
            (f(3, dtype=HALF), f(3)),
            (f(3, dtype=HALF), t(1.25, DOUBLE)),
            (f(2, 3, dtype=HALF), f(3, dtype=HALF)),
            (f(2, 3, dtype=BFLOAT), f(3, dtype=BFLOAT)),
            (f(0, 3), f(3)),
            (SPECIAL, SPECIAL.flip(0)),
            (t([BIG, -BIG, 2**62]), t([BIG, 7, 2**62])),
        )
    ),
    *(case(f"{n}.Tensor", b(4), i(4)) for n in ("add", "mul", "div", *COMPARISONS)),
    *(case(f"{n}.Tensor", b(4), b(4).flip(0)) for n in ("add", "mul", *COMPARISONS)),
    *(
        case(f"{n}.Scalar", x, s)
        for n in ("add", "sub", "mul", "div", "rsub", *COMPARISONS)
        for x, s in (
            (f(2, 3), 2),
            (f(2, 3), 0.3),
            (f(), 3),
            (i(2, 3), 2),
            (i(2, 3), 2.5),
            (i(2, 3, dtype=torch.int8), 7),
            (f(3, dtype=HALF), 1.1),
            (f(3, dtype=DOUBLE), 0.1),
            (t([BIG, -BIG]), BIG),
            (f(0), 1),
            (SPECIAL, INF),
        )
    ),
    *(case(f"{n}.Scalar", b(4), s) for n in ("add", "mul", "ne", "lt") for s in (2, 2.5)),
    case("add.Tensor", f(2, 3), f(3), 0.5),
    case("sub.Tensor", f(2, 3), f(3), 3),
    case("sub.Tensor", i(3), i(3), 2),
    case("add.Scalar", i(3), 4, 3),
    case("rsub.Scalar", i(3), 4, 3),
    case("rsub.Tensor", f(3), f(2, 3), 2),
    case("mul.Scalar", t([2**62, 3]), 4),
    *(
        case("div.Tensor_mode", x, y, mode)
        for mode in (None, "floor", "trunc")
        for x, y in (
            (t([7, -7, 7, -7, BIG]), t([2, 2, -2, -2, -3])),
            (t([7.0, -7.5, NAN, 1.0, -1.0, INF]), t([2.0, 2.0, 1.0, 0.0, 0.0, 2.0])),
            (f(2, 3, dtype=HALF), f(3, dtype=HALF)),
            (i(4, low=0, dtype=torch.uint8), t([3, 4, 5, 6], torch.uint8)),
        )
    ),
    *(case("div.Scalar_mode", t([7, -7, 8]), s, m) for m in (None, "floor", "trunc") for s in (2, -2, 2.5)),
    *(
        case(n, x, y)
        for n in ("floor_divide.default", "fmod.Tensor", "remainder.Tensor")
        for x, y in (
            (t([7, -7, 7, -7, BIG]), t([2, 2, -2, -2, -3])),
            (t([7.5, -7.5, 7.5, -7.5, NAN, 1.0]), t([2.0, 2.0, -2.0, -2.0, 1.0, 0.0])),
            (f(2, 3), t(0.3)),
            (f(0), f(0)),
        )
    ),
    *(case(f"{n}.Scalar", x, s) for n in ("fmod", "remainder") for x in (t([7, -7, 8]), f(5)) for s in (2, -3, 1.5)),
    *(case("pow.Tensor_Scalar", positive(3, 2), s) for s in (2, 0.5, -1.5, 0)),
    case("pow.Tensor_Scalar", t([-2.0, -8.0, 0.0]), 3),
    case("pow.Tensor_Scalar", i(4), 3),
    case("pow.Tensor_Scalar", i(4, dtype=torch.int32), 2.0),
    case("pow.Tensor_Scalar", t([3, 10, -7]), 30),
    *(case("pow.Scalar", s, x) for s in (2, 0.5, 0) for x in (f(4), i(4, low=0))),
    case("pow.Tensor_Tensor", positive(2, 3), f(3)),
    case("pow.Tensor_Tensor", t([2, 1, -1, -1, 0, 3]), t([-1, -2, -3, -4, 0, 4])),
    case("atan2.default", f(2, 3), f(3)),
    case("hypot.default", f(2, 3), f(3)),
    case("hypot.default", t([1e30, INF, NAN, 0.0]), t([1e30, NAN, 1.0, 0.0])),
    *(
        case(f"{n}.default", x)
        for n in ("erfc", "lgamma")
        for x in (f(3, 4), f(0), t([-INF, INF, NAN, 0.0, -2.0, 9.0]))
    ),
    case("atan2.default", i(3), i(3, low=1)),
    *(
        case(n, x, y)
        for n in ("maximum.default", "minimum.default", "max.other", "min.other")
        for x, y in ((SPECIAL, SPECIAL.flip(0)), (f(2, 1), f(3)), (t([BIG, 1]), t([BIG + 1, 0])), (i(3), f(3)))
    ),
    *(
        case(f"bitwise_{n}.Tensor", x, y)
        for n in ("and", "or", "xor")
        for x, y in ((i(2, 3), i(3)), (b(4), b(4).flip(0)), (t([BIG]), t([2**40])), (b(4), i(4)))
    ),
    *(case(f"bitwise_{n}.Scalar", x, s) for n in ("and", "or", "xor") for x, s in ((i(3), 6), (b(3), True))),
    *(
        case(f"bitwise_{n}_shift.Tensor", x, y)
        for n in ("left", "right")
        for x, y in (
            (t([1, -4, 5, 9, -9]), t([3, 1, 0, 64, 70])),
            (t([1, -4, 9], torch.int32), t([3, 40, 2], torch.int32)),
            (t([1, 200], torch.uint8), t([3, 9], torch.uint8)),
        )
    ),
    *(case(f"bitwise_{n}_shift.Tensor_Scalar", i(4), 2) for n in ("left", "right")),
    *(case(f"__{n}__.{o}", i(4), s) for n in ("lshift", "rshift") for o, s in (("Tensor", i(4, low=0)), ("Scalar", 2))),
    *(
        case(f"logical_{n}.default", x, y)
        for n in ("and", "or", "xor")
        for x, y in ((b(4), b(4).flip(0)), (SPECIAL, t(0.0)), (i(2, 3), i(3)))
    ),
    *(
        case("clamp.default", x, low, high)
        for x in (f(2, 3), SPECIAL, i(4), f(0))
        for low, high in ((-1, 1), (None, 0.5), (0, None), (2, -2))
    ),
    case("clamp.default", f(3, dtype=HALF), -0.3, 0.3),
    case("clamp.default", t([BIG, -BIG]), 0, BIG - 1),
    case("clamp.Tensor", f(2, 3), t([-1.0, 0.0, NAN]), t(0.5)),
    case("clamp.Tensor", i(4), None, f(4)),
    *(
        case("where.self", b(2, 3), x, y)
        for x, y in ((f(2, 3), f(3)), (i(3), t(1.5)), (i(3), t(BIG)), (f(3, dtype=HALF), f(3)), (b(3), i(3)))
    ),
    case("where.self", t(True), f(), f(2)),
    *(case("masked_fill.Scalar", f(2, 3), b(3), s) for s in (-INF, 0, 2)),
    case("masked_fill.Scalar", i(3), b(2, 3), BIG),
    case("masked_fill.Tensor", f(2, 3), b(2, 1), t(5)),
]


def test_erf_to_double_precision() -> None:
    x = np.concatenate([np.linspace(-7, 7, 1001), 10.0 ** -np.arange(0, 300, 20)])
    np.testing.assert_allclose(erf(x), [math.erf(v) for v in x], rtol=2e-15, atol=0)
