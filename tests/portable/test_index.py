from __future__ import annotations

import torch
from tests.portable.harness import BIG, INF, NAN, Case, b, case, f, i, t

X = f(3, 4, 5)
ROWS, COLUMNS = t([2, 0, 2]), t([1, 3, -1])
CORNER = t([[0, 2], [1, 1]])

CASES: list[Case] = [
    *(case("index_select.default", X, d, t([1, 0, 1])) for d in (0, 1, -1)),
    case("index_select.default", f(), 0, t([0])),
    case("index_select.default", X, 1, t(2)),
    case("index_select.default", X, 0, t([], torch.int64)),
    case("index_select.default", X, 0, t([2], torch.int32)),
    *(case("embedding.default", f(6, 3), x) for x in (t([[1, 5], [0, 1]]), t(3), i(0), t([2], torch.int32))),
    *(case("gather.default", X, d, i(2, 3, 2, low=0, high=3)) for d in (0, 1, -1)),
    case("gather.default", f(), 0, t(0)),
    case("gather.default", f(), 0, t([0, 0])),
    case("gather.default", X, 1, i(0, 2, 3)),
    *(case("scatter.src", X, d, t([[[2, 0, 1]]]), f(1, 1, 4)) for d in (0, 1, 2)),
    *(case("scatter.value", X, d, t([[[2, 0, 1]]]), v) for d in (0, -1) for v in (7, 0.5)),
    case("scatter.value", t([BIG, 1]), 0, t([1]), BIG),
    case("scatter.value", f(), 0, t(0), 2),
    case("scatter.src", X, 0, i(0), f(3, 4, 5)),
    *(case("scatter_add.default", X, d, i(2, 4, 5, low=0, high=3), f(3, 4, 5)) for d in (0, 1, 2)),
    case("scatter_add.default", i(3), 0, t([1, 1, 1]), t([BIG, BIG, 1])),
    *(
        case("scatter_reduce.two", x, 0, i(2, 4, 5, low=0, high=3), source, by, own)
        for x, source in ((X, f(3, 4, 5)), (i(3, 4, 5), i(2, 4, 5)), (i(3, 4, 5), i(2, 4, 5, low=BIG, high=BIG + 9)))
        for by in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    case("scatter_reduce.two", t([0.0, INF, -INF]), 0, t([0, 0, 2]), t([NAN, 2.0, 3.0]), "amax", False),
    case("scatter_reduce.two", f(), 0, t(0), t(2.0), "mean", True),
    case("scatter_reduce.two", X, 0, i(0, 4, 5), X, "amax", False),
    *(case("scatter.reduce", X, 1, i(2, 4, 5, low=0, high=4), f(3, 4, 5), by) for by in ("add", "multiply")),
    *(case("scatter.value_reduce", X, 1, i(2, 4, 5, low=0, high=4), 1.5, by) for by in ("add", "multiply")),
    *(
        case(
            "index_reduce.default",
            X,
            d,
            t([2, 0, 2]),
            f(*(3 if k == d % 3 else n for k, n in enumerate((3, 4, 5)))),
            by,
            own,
        )
        for d in (0, 1, -1)
        for by in ("prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    *(
        case("index.Tensor", X, indices)
        for indices in (
            [ROWS],
            [None, COLUMNS],
            [ROWS, COLUMNS],
            [ROWS, None, COLUMNS],
            [None, ROWS, COLUMNS],
            [CORNER, None, t([0, 3])],
            [t(1)],
            [t(1), None, COLUMNS],
            [None, t(1), t(2)],
            [b(3)],
            [b(3, 4)],
            [None, b(4, 5)],
            [None, b(4).byte()],
            [i(0, 2)],
            [t([1], torch.int32)],
        )
    ),
    *(
        case("index_put.default", X, indices, values, accumulate)
        for accumulate in (False, True)
        for indices, values in (
            ([t([2, 0])], f(2, 4, 5)),
            ([t([2, 0])], t(1.5)),
            ([None, t([1, 3])], f(3, 2, 5)),
            ([None, None, t([1, 3])], f(2)),
            ([t([2, 0]), None, t([4, 1])], f(2, 4)),
            ([b(3, 4)], f(5)),
            ([b(3, 4)], t(0.0)),
        )
    ),
    case("index_put.default", X, [t([1, 1, 1])], f(4, 5), True),
    case("index_put.default", t([BIG, 0]), [t([1])], t([BIG]), True),
    *(case("masked_select.default", x, m) for x, m in ((X, b(4, 5)), (f(5), b(4, 5)), (f(), t(True)), (X, b(5)))),
    *(case("masked_scatter.default", x, m, f(60)) for x, m in ((X, b(4, 5)), (X, b(3, 1, 5)), (f(5), b(5)))),
    *(case("nonzero.default", x) for x in (b(2, 3), f(4), t(3.0), t(0), f(0, 2))),
    *(case("repeat_interleave.Tensor", x) for x in (t([2, 0, 3]), i(0), t([1, 1], torch.int32))),
    *(case("repeat_interleave.self_int", X, *a) for a in ((2,), (3, 1), (1, -2), (0, 0))),
]
