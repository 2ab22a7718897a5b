from __future__ import annotations

import torch
from tests.portable.harness import BIG, INF, NAN, Case, case, distinct, f, i, t

WITH_NAN = t([[1.0, NAN, 3.0], [-2.0, 5.0, NAN], [0.0, 1.0, 2.0]])
ORDERED = t([-1.0, 0.0, 0.0, 2.5, INF])
ROWS = t([[1, 3, 5], [2, 4, 4]])

CASES: list[Case] = [
    *(
        case("topk.default", x, k, dim, largest, True)
        for x, k, dim in ((distinct(5), 3, -1), (distinct(3, 4), 2, 0), (distinct(3, 4), 4, 1), (distinct(3, 4), 0, 1))
        for largest in (True, False)
    ),
    case("topk.default", t([1.0, NAN, 3.0, -INF]), 3),
    case("topk.default", t([1.0, NAN, 3.0, -INF]), 3, -1, False),
    case("topk.default", t([BIG, 1, BIG + 1]), 2),
    case("topk.default", f(), 1),
    *(case("sort.default", x, d, down) for x in (distinct(3, 4), t([NAN, 1, -1])) for d in (0, -1) for down in (0, 1)),
    *(case("sort.stable", i(20, low=0, high=4), True, 0, down) for down in (False, True)),
    case("sort.default", f()),
    *(
        case("kthvalue.default", x, k, dim, keepdim)
        for x, k, dim in ((distinct(5), 3, -1), (distinct(3, 4), 2, 0), (distinct(3, 4), 4, 1), (f(), 1, 0))
        for keepdim in (False, True)
    ),
    case("kthvalue.default", t([1.0, NAN, 3.0]), 3),
    *(
        case("median.dim", x, dim, keepdim)
        for x in (distinct(3, 4), distinct(4, 3, dtype=torch.int64), WITH_NAN, f())
        for dim in (0, -1)
        for keepdim in (False, True)
    ),
    *(case("median.default", x) for x in (distinct(3, 4), WITH_NAN, i(5), f(), f(0))),
    *(
        case("searchsorted.Tensor", ORDERED, x, int32, right)
        for x in (t([[0.0, -2.0], [INF, NAN]]), t(0.0), f(0))
        for int32 in (False, True)
        for right in (False, True)
    ),
    *(case("searchsorted.Tensor", ROWS, t([[3, 0], [4, 9]]), False, False, side) for side in ("left", "right")),
    case("searchsorted.Tensor", t([[5, 1, 3]]), t([[3, 4]]), False, False, None, t([[1, 2, 0]])),
    case("searchsorted.Tensor", t([BIG, BIG + 2]), t([BIG + 1, 0])),
    *(case("searchsorted.Scalar", ORDERED, 0.0, False, right) for right in (False, True)),
    *(case("bucketize.Tensor", x, ORDERED, False, right) for x in (f(2, 3), t([0.0, NAN])) for right in (False, True)),
    case("bucketize.Tensor", i(5), t([-3, 0, 3]), True),
    case("bucketize.Scalar", 0.0, ORDERED),
]
