from __future__ import annotations

import torch
from tests.portable.harness import INF, NAN, Case, case, f, positive, t

HALF, BFLOAT = torch.float16, torch.bfloat16
IMAGE = f(2, 4, 3, 5)

CASES: list[Case] = [
    *(
        case(f"{n}.default", x, d, False)
        for n in ("_softmax", "_log_softmax")
        for x in (f(2, 3, 4), f(2, 3, 4, dtype=HALF), f(2, 3, 4, dtype=BFLOAT), f(2, 3, 4) * 100)
        for d in (0, 1, -1)
    ),
    *(case(f"{n}.default", x, 0, False) for n in ("_softmax", "_log_softmax") for x in (f(), f(0, 3), f(3, 0))),
    *(
        case(f"{n}.default", t(v), -1, False)
        for n in ("_softmax", "_log_softmax")
        for v in ([NAN, 1.0], [-INF, 0.0], [-INF, -INF])
    ),
    *(case("glu.default", f(2, 6, 4), *a) for a in ((), (1,), (-2,), (0,))),
    case("glu.default", f(4, dtype=HALF)),
    *(
        case("native_layer_norm.default", x, s, w, bias, 1e-5)
        for x, s in ((f(2, 3, 4), [4]), (f(2, 3, 4), [3, 4]), (f(4), [4]), (f(0, 4), [4]))
        for w, bias in ((f(*s), f(*s)), (f(*s), None), (None, None))
    ),
    case("native_layer_norm.default", f(2, 4) + 10, [4], None, None, 1e-5),
    *(
        case("native_group_norm.default", IMAGE, w, bias, 2, 4, 15, g, 1e-3)
        for g in (1, 2, 4)
        for w, bias in ((f(4), f(4) + 1), (None, f(4)), (None, None))
    ),
    case("native_group_norm.default", f(3, 4), f(4), None, 3, 4, 1, 2, 1e-3),
    *(
        case("_native_batch_norm_legit_no_training.default", x, w, bias, f(4), positive(4), 0.1, 1e-3)
        for x in (IMAGE, f(3, 4), f(2, 4, 5))
        for w, bias in ((f(4), f(4) + 1), (None, None))
    ),
    case("_native_batch_norm_legit.default", IMAGE, f(4), f(4), f(4) + 1, positive(4), False, 0.1, 1e-3),
    *(
        case("_native_batch_norm_legit.no_stats", x, w, None, True, 0.1, 1e-3)
        for x in (IMAGE, f(3, 4))
        for w in (f(4), None)
    ),
]
