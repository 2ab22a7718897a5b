from __future__ import annotations

import torch
from tests.portable.harness import BIG, INF, NAN, Case, b, case, distinct, f, i, t

HALF, BFLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float64
WITH_NAN = t([[1.0, NAN, 3.0], [-2.0, 5.0, NAN], [0.0, 0.0, 0.0]])
BIGS = t([[BIG, -BIG, 1], [BIG + 1, 5, BIG]])

CASES: list[Case] = [
    *(
        case(f"{n}", x, dim, keepdim)
        for n in ("sum.dim_IntList", "mean.dim")
        for x in (f(2, 3, 4), f(2, 3, 4, dtype=HALF), f(2, 3, 4, dtype=BFLOAT), f(2, 3, 4, dtype=DOUBLE))
        for dim in ([1], [-1, 0], None, [])
        for keepdim in (False, True)
    ),
    *(case(n, x, d) for n in ("sum.dim_IntList", "mean.dim") for x, d in ((f(), [0]), (f(), None), (f(0, 3), [0]))),
    case("mean.dim", f(2, 0), [1], True),
    case("mean.dim", i(2, 3), [1], False, torch.float32),
    *(case("sum.dim_IntList", x, [1]) for x in (i(2, 3), i(2, 3, dtype=torch.int8), b(2, 3), BIGS, WITH_NAN)),
    case("sum.dim_IntList", i(2, 3), [0], True, torch.float32),
    *(case(n, x) for n in ("sum.default", "prod.default") for x in (f(2, 3), i(2, 3), b(3), f(), f(0), BIGS)),
    *(case("mean.default", x) for x in (f(2, 3), f(), f(0), f(2, 3, dtype=HALF))),
    case("prod.default", i(3), torch.float32),
    *(case("prod.dim_int", x, d, k) for x in (f(2, 3), i(2, 3)) for d in (0, -1) for k in (False, True)),
    case("prod.dim_int", f(), -1),
    *(case("cumsum.default", x, d) for x in (f(2, 3), i(2, 3), b(2, 3), BIGS, f(0, 3)) for d in (0, -1)),
    *(case("cumsum.default", x, 0) for x in (f(), t(5), f(5, dtype=HALF))),
    case("cumsum.default", i(4), 0, torch.float32),
    *(
        case(f"{n}.correction", f(2, 3, 4), dim, correction, keepdim)
        for n in ("var", "var_mean", "std")
        for dim in (None, [], [1], [-1, 0])
        for correction in (None, 0, 1, 2.5)
        for keepdim in (False, True)
    ),
    *(case(f"{n}.correction", x) for n in ("var", "var_mean", "std") for x in (f(1), f(0), f(), f(5, dtype=HALF))),
    case("var.correction", f(3) + 1e4),
    *(case("var.dim", f(2, 3), [1], unbiased, keepdim) for unbiased in (True, False) for keepdim in (True, False)),
    *(
        case(f"{n}.default", x, dim, keepdim)
        for n in ("amax", "amin")
        for x in (f(2, 3), WITH_NAN, BIGS, b(2, 3), f(2, 3, dtype=HALF))
        for dim in ([], [0], [-1, 0])
        for keepdim in (False, True)
    ),
    *(case(f"{n}.default", f(), d) for n in ("amax", "amin") for d in ([], [0])),
    case("amax.default", f(0, 3), [1]),
    *(
        case(f"{n}.default", x, dim, keepdim)
        for n in ("argmax", "argmin")
        for x in (distinct(3, 4), WITH_NAN, BIGS, f())
        for dim in (None, 0, -1)
        for keepdim in (False, True)
    ),
    *(case(f"{n}.default", x) for n in ("max", "min") for x in (f(2, 3), WITH_NAN, BIGS, f(), b(3))),
    *(
        case(f"{n}.dim", x, dim, keepdim)
        for n in ("max", "min")
        for x in (distinct(3, 4), WITH_NAN, BIGS, f())
        for dim in (0, -1)
        for keepdim in (False, True)
    ),
    *(case(f"{n}.default", x) for n in ("any", "all") for x in (b(2, 3), f(0), f(), WITH_NAN, i(2, dtype=torch.uint8))),
    *(
        case(f"{n}.dim", x, dim, keepdim)
        for n in ("any", "all")
        for x in (b(2, 3), f(0, 3), f(), t([[0.0, 2.0]]))
        for dim in (0, -1)
        for keepdim in (False, True)
    ),
    *(
        case(f"{name}.dims", b(2, 3, 2), dim, k)
        for name in ("any", "all")
        for dim in (None, [], [1], [0, -1])
        for k in (False, True)
    ),
    *(
        case(f"{n}.default", x, d)
        for n in ("cummax", "cummin")
        for x in (f(2, 3), WITH_NAN, BIGS, i(2, 5, low=0, high=3))
        for d in (0, -1)
    ),
    *(case(f"{n}.default", f(), 0) for n in ("cummax", "cummin", "logcumsumexp")),
    *(case("logcumsumexp.default", x, d) for x in (f(2, 3), f(2, 3) * 100, f(0, 3)) for d in (0, -1)),
    *(case("linalg_vector_norm.default", f(2, 3), p, [1], True) for p in (0, 1, 2, 3.5, INF, -INF)),
]
