from __future__ import annotations

import torch
from tests.portable.harness import Case, case, f, i

IMAGE = f(2, 3, 5, 7)
GRID = f(2, 4, 3, 2) * 0.9  # some points lie outside [-1, 1]

CASES: list[Case] = [
    *(
        case("upsample_nearest2d.vec", IMAGE, size, factors)
        for size, factors in (([10, 9], None), ([3, 2], None), (None, [2.0, 3.0]), (None, [1.7, 0.6]))
    ),
    *(
        case("upsample_bilinear2d.vec", IMAGE, size, align, factors)
        for align in (False, True)
        for size, factors in (([10, 9], None), ([3, 2], None), ([1, 1], None), (None, [2.0, 3.0]), (None, [1.7, 0.6]))
    ),
    *(
        case("upsample_bilinear2d.vec", i(2, 3, 5, 7, low=0, high=256, dtype=torch.uint8), size, True, None)
        for size in ([10, 9], [3, 4], [5, 7])
    ),
    *(
        case("_upsample_bilinear2d_aa.default", IMAGE, size, align)
        for align in (False, True)
        for size in ([10, 9], [3, 2], [2, 9], [5, 7])
    ),
    case("_upsample_bilinear2d_aa.default", IMAGE, [3, 4], False, 0.7, 0.6),
    *(
        case("grid_sampler_2d.default", IMAGE, grid, mode, padding, align)
        for grid in (GRID, GRID * 4)
        for mode in (0, 1, 2)
        for padding in (0, 1, 2)
        for align in (False, True)
    ),
    case("grid_sampler_2d.default", f(1, 2, 1, 1), f(1, 2, 2, 2), 0, 2, True),
]
