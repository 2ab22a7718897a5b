from __future__ import annotations

import torch
from tests.portable.harness import INF, NAN, Case, case, distinct, f, t

IMAGE = distinct(2, 3, 7, 8)
VOLUME = distinct(2, 3, 4, 5, 6).double()

CASES: list[Case] = [
    *(
        case("avg_pool2d.default", x, *a)
        for x in (f(2, 3, 7, 8), f(3, 7, 8))
        for a in (
            ([2, 3],),
            ([2],),
            ([3, 3], [2, 1], [1, 0]),
            ([3, 2], [2, 2], [1, 1], True),
            ([3, 2], [2, 3], [1, 1], True, False),
            ([3, 3], [3, 3], [1, 1], False, False),
            ([3, 3], [], [0, 0], True, True, 5),
        )
    ),
    case("avg_pool2d.default", f(1, 2, 4, 4, dtype=torch.float16), [2, 2]),
    *(
        case("max_pool2d_with_indices.default", x, *a)
        for x in (IMAGE, IMAGE[0], IMAGE.long())
        for a in (
            ([2, 3],),
            ([3],),
            ([3, 3], [2, 1], [1, 0]),
            ([3, 2], [2, 3], [1, 1], [1, 1], True),
            ([2, 2], [1, 2], [0, 1], [2, 3]),
        )
    ),
    case("max_pool2d_with_indices.default", t([[[1.0, NAN, 2.0, 3.0]]]), [1, 2], [1, 2]),
    case("max_pool2d_with_indices.default", torch.full((1, 3, 3), -INF), [2, 2], [2, 2], [1, 1]),
    *(
        case("avg_pool3d.default", x, *a)
        for x in (VOLUME, VOLUME[0])
        for a in (
            ([2, 3, 2],),
            ([2],),
            ([3, 2, 2], [2, 2, 1], [1, 1, 0], True),
            ([3, 2, 3], [2, 3, 2], [1, 1, 1], True, False),
            ([3, 3, 3], [], [0, 0, 0], True, True, 5),
        )
    ),
    *(
        case("max_pool3d_with_indices.default", x, *a)
        for x in (VOLUME, VOLUME[0], VOLUME.long())
        for a in (
            ([2, 3, 2],),
            ([2],),
            ([3, 2, 3], [2, 1, 2], [1, 0, 1], [1, 1, 1], True),
            ([2, 2, 2], [1, 2, 1], [0, 1, 1], [2, 3, 1]),
        )
    ),
    case(
        "max_pool2d_with_indices_backward.default",
        f(2, 3, 4, 4),
        f(2, 3, 7, 8),
        [3, 3],
        [2, 2],
        [1, 1],
        [1, 1],
        False,
        torch.ops.aten.max_pool2d_with_indices(f(2, 3, 7, 8), [3, 3], [2, 2], [1, 1])[1],
    ),
    *(case("_adaptive_avg_pool2d.default", f(2, 3, 7, 8), o) for o in ([1, 1], [3, 4], [7, 8], [9, 5])),
    case("_adaptive_avg_pool2d.default", f(3, 4, 4), [2, 3]),
    *(
        case(name, x, o)
        for name in ("_adaptive_avg_pool3d.default", "adaptive_max_pool3d.default")
        for x in (VOLUME, VOLUME[0])
        for o in ([1, 1, 1], [2, 3, 4], [4, 5, 6], [7, 2, 3])
    ),
    *(case("adaptive_max_pool2d.default", IMAGE.double(), o) for o in ([1, 1], [3, 4], [9, 5])),
]
