from __future__ import annotations

import torch
from tests.portable.harness import Case, case, f, i

PLAIN_2D = ([1, 1], [0, 0], [1, 1])  # stride, padding, dilation

CASES: list[Case] = [
    *(
        case("convolution.default", f(n, 4, *sizes), f(6, 4 // groups, *kernel), bias, *geometry, False, [0], groups)
        for n, sizes, kernel, groups, bias, geometry in (
            (1, [5, 6], [3, 2], 1, f(6), PLAIN_2D),
            (2, [5, 6], [3, 3], 2, None, ([2, 1], [1, 2], [1, 1])),
            (2, [7, 7], [3, 3], 1, f(6), ([1, 2], [2, 0], [2, 3])),
            (1, [3, 3], [1, 1], 2, f(6), PLAIN_2D),
            (0, [5, 6], [3, 3], 1, f(6), PLAIN_2D),
            (2, [9], [3], 1, f(6), ([2], [1], [2])),
            (1, [9], [4], 2, None, ([1], [3], [1])),
            (1, [4, 5, 3], [2, 3, 1], 1, f(6), ([1, 2, 1], [0, 1, 0], [1, 1, 1])),
        )
    ),
    case("convolution.default", f(2, 4, 5, 5), f(8, 1, 3, 3), f(8), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    case("convolution.default", f(2, 3, 5, 5), f(2, 3, 3, 3), None, [2], [1], [1], False, [0], 1),
    case(
        "convolution.default",
        f(1, 2, 4, 4, dtype=torch.float16),
        f(3, 2, 3, 3, dtype=torch.float16),
        None,
        *PLAIN_2D,
        False,
        [0, 0],
        1,
    ),
    case(
        "convolution.default",
        f(1, 2, 4, 4, dtype=torch.float64),
        f(3, 2, 3, 3, dtype=torch.float64),
        None,
        *PLAIN_2D,
        False,
        [0, 0],
        1,
    ),
    case("convolution.default", i(1, 2, 4), i(3, 2, 2), None, [1], [0], [1], False, [0], 1),
    *(
        case("convolution.default", f(n, 4, *sizes), f(4, 6 // groups, *kernel), bias, *geometry, True, extra, groups)
        for n, sizes, kernel, groups, bias, geometry, extra in (
            (1, [3, 4], [3, 2], 1, f(6), PLAIN_2D, [0, 0]),
            (2, [3, 4], [3, 3], 2, f(6), ([2, 3], [1, 0], [1, 1]), [1, 2]),
            (1, [3, 3], [3, 3], 1, None, ([1, 2], [2, 1], [2, 1]), [0, 0]),
            (2, [5], [4], 2, f(6), ([2], [1], [1]), [1]),
        )
    ),
    *(
        case(
            "convolution_backward.default",
            grad,
            x,
            w,
            [w.shape[1] * g if transposed else len(w)],
            *geometry,
            transposed,
            extra,
            g,
            mask,
        )
        for grad, x, w, geometry, transposed, extra, g, mask in (
            (f(2, 6, 3, 4), f(2, 4, 5, 5), f(6, 2, 3, 2), PLAIN_2D, False, [0, 0], 2, [True, True, True]),
            (
                f(2, 6, 3, 3),
                f(2, 4, 6, 6),
                f(6, 4, 3, 3),
                ([2, 2], [1, 1], [1, 1]),
                False,
                [0, 0],
                1,
                [True, True, True],
            ),
            (f(2, 6, 7), f(2, 4, 11), f(6, 4, 3), ([1], [0], [2]), False, [0], 1, [False, True, False]),
            (
                f(2, 6, 7, 9),
                f(2, 4, 3, 4),
                f(4, 3, 3, 3),
                ([2, 2], [0, 0], [1, 1]),
                True,
                [0, 0],
                2,
                [True, True, True],
            ),
            (f(1, 3, 8), f(1, 2, 4), f(2, 3, 3), ([2], [1], [1]), True, [1], 1, [True, True, True]),
        )
    ),
]
