from __future__ import annotations

import torch
from tests.portable.harness import BIG, Case, b, case, f, i, t

HALF, BFLOAT = torch.float16, torch.bfloat16
X = f(2, 3, 4)
EVERY_DTYPE = (X, f(2, 3, dtype=HALF), f(2, 3, dtype=BFLOAT), t([[BIG, -BIG]]), b(2, 3), i(3, dtype=torch.uint8))

CASES: list[Case] = [
    *(
        case(f"{n}.default", x)
        for n in ("alias_copy", "clone", "detach_copy", "lift_fresh_copy")
        for x in (*EVERY_DTYPE, f(), f(0, 3))
    ),
    case("dim_order_ops._clone_dim_order.default", f(1, 2, 3, 4), False, [0, 2, 3, 1]),
    *(
        case("dim_order_ops._to_dim_order_copy.default", t([2.7, -2.7, 0.0]), False, [0], dtype=d)
        for d in (torch.int64, torch.float64, HALF, torch.bool, torch.uint8, torch.int8)
    ),
    case("dim_order_ops._to_dim_order_copy.default", t([BIG, -1, 300]), dtype=torch.int32),
    case("dim_order_ops._to_dim_order_copy.default", t([BIG, -1, 300]), dtype=torch.float32),
    case("_to_copy.default", X, dtype=torch.int32),
    case("_to_copy.default", t([float("nan"), 0.0]), dtype=torch.bool),
    case("copy.default", X, f(4)),
    case("copy.default", i(2, 3), f(2, 3)),
    case("copy.default", f(), t(3)),
    *(case("view_copy.default", x, s) for x, s in ((X, [6, 4]), (X, [-1, 2]), (f(0, 3), [3, 0]), (f(), [1, 1]))),
    case("reshape.default", X.transpose(0, 1), [-1]),
    case("view_copy.default", f(1, 1), []),
    *(case("expand_copy.default", x, s) for x, s in ((f(1, 3), [2, -1, 3]), (f(), [2]), (f(1, 3), [0, 3]), (f(), []))),
    *(case("permute_copy.default", X, d) for d in ([2, 0, 1], [-1, 0, 1])),
    case("permute_copy.default", f(), []),
    *(case("transpose_copy.int", X, *d) for d in ((0, 1), (-1, 0), (1, 1))),
    case("transpose_copy.int", f(), 0, -1),
    *(case("t_copy.default", x) for x in (f(2, 3), f(3), f())),
    *(case("squeeze_copy.dim", f(2, 1, 3, 1), d) for d in (0, 1, -1)),
    case("squeeze_copy.dim", f(), 0),
    *(case("squeeze_copy.dims", f(2, 1, 3, 1), d) for d in ([1, 3], [0, -1], [])),
    *(case("unsqueeze_copy.default", X, d) for d in (0, 3, -1, -4)),
    case("unsqueeze_copy.default", f(), 0),
    *(case("select_copy.int", X, d, k) for d, k in ((0, 1), (-1, -2), (1, 0))),
    *(
        case("slice_copy.Tensor", X, *a)
        for a in ((), (1, 1), (2, 0, 3, 2), (-1, -3, -1), (1, 0, 2**63 - 1), (1, 2, 1), (0, 5, 9), (2, -9, 2, 3))
    ),
    *(case("narrow_copy.default", X, *a) for a in ((1, 1, 2), (-1, -3, 2), (0, 0, 0))),
    *(case("split_copy.Tensor", f(5, 2), *a) for a in ((2,), (5,), (7, 0), (1, -1))),
    case("split_copy.Tensor", f(0, 2), 3),
    *(case("split_with_sizes_copy.default", f(5, 2), *a) for a in (([2, 3],), ([1, 0, 4], 0), ([1, 1], -1))),
    *(case("unbind_copy.int", X, *a) for a in ((), (1,), (-1,))),
    *(case("cat.default", [f(2, 3), f(1, 3), f(0)], *a) for a in ((), (0,), (-2,))),
    case("cat.default", [f(2, 3), f(2, 0), f(2, 1)], 1),
    case("cat.default", [i(3), f(2), b(2)]),
    case("cat.default", [f(3, dtype=HALF), f(2)]),
    case("cat.default", [t([BIG]), i(2, dtype=torch.int32)]),
    case("cat.default", [f(0), f(0)]),
    *(case("stack.default", [f(2, 3), f(2, 3)], *a) for a in ((), (1,), (-1,))),
    case("stack.default", [f(), t(3)]),
    *(case("slice_scatter.default", X, s, *a) for s, a in ((f(2, 2, 4), (1, 1)), (f(2, 3, 2), (-1, 0, 4, 2)))),
    case("slice_scatter.default", X, f(0, 3, 4), 0, 2, 9),
    case("slice_scatter.default", i(4), f(2), 0, 1, 3),
    *(case("select_scatter.default", X, s, *a) for s, a in ((f(3, 4), (0, -1)), (f(2, 3), (2, 0)))),
    *(case("flip.default", X, d) for d in ([0], [-1, 1], [])),
    *(case("roll.default", X, *a) for a in (([1],), ([1], [0]), ([-3, 2], [2, 0]), ([5], [-1]))),
    *(case("repeat.default", x, r) for x, r in ((X, [2, 1, 3]), (f(2), [2, 3]), (f(), [2, 2]), (f(2), [0]), (f(), []))),
    *(case(f"{n}.default", f(2, 4, 3), *a) for n in ("tril", "triu") for a in ((), (1,), (-2,))),
    case("tril.default", b(3, 3)),
    *(case("diagonal_copy.default", X, *a) for a in ((), (1, 0, 2), (-1, -2, -1), (9,))),
    *(
        case("as_strided_copy.default", f(12), *a)
        for a in (([3, 2], [4, 1]), ([2, 2, 2], [0, 1, 2], 3), ([0, 2], [1, 1]), ([], [], 5))
    ),
    case("as_strided_copy.default", X, [4, 3], [1, 4]),
    *(case("unfold_copy.default", f(2, 7), *a) for a in ((1, 3, 2), (-1, 7, 1), (0, 1, 1))),
    case("unfold_copy.default", f(), 0, 1, 1),
    *(case("pixel_shuffle.default", x, 2) for x in (f(2, 8, 3, 2), f(4, 2, 3), f(2, 1, 4, 1, 2))),
    *(case("pixel_unshuffle.default", x, 2) for x in (f(2, 3, 4, 6), f(1, 2, 2))),
    *(
        case("constant_pad_nd.default", X, *a)
        for a in (([1, 2],), ([1, 0, -1, 2], 0.5), ([0, 0, 0, 0, 1, 1], 3), ([],))
    ),
    case("constant_pad_nd.default", i(3), [1, 1], BIG),
    case("constant_pad_nd.default", b(3), [1, 1], True),
    *(
        case(f"{kind}_pad{n}d.default", f(*[2, *[4] * n]), p)
        for kind in ("reflection", "replication")
        for n, p in ((1, [2, 3]), (2, [1, 2, 3, 0]), (3, [1, 0, 2, 1, 0, 3]))
    ),
    case("reflection_pad2d.default", f(2, 1, 3, 3), [2, 2, 1, 1]),
    case("replication_pad2d.default", f(2, 1, 1, 3), [5, 5, 2, 1]),
    case("view_as_real_copy.default", torch.complex(f(2, 3), f(2, 3) + 1)),
]
