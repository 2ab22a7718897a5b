from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.portable.harness import BIG, INF, NAN, Case, case, f, i, t

from ptegpu.portable.linalg import fft_c2r, fft_r2c

HALF, BFLOAT = torch.float16, torch.bfloat16

CASES: list[Case] = [
    *(
        case("mm.default", x, y)
        for x, y in (
            (f(2, 3), f(3, 4)),
            (f(2, 3, dtype=HALF), f(3, 4, dtype=HALF)),
            (f(2, 3, dtype=BFLOAT), f(3, 4, dtype=BFLOAT)),
            (f(2, 3, dtype=torch.float64), f(3, 4, dtype=torch.float64)),
            (i(2, 3), i(3, 4)),
            (t([[BIG, 1]]), t([[3], [-1]])),
            (f(2, 0), f(0, 3)),
        )
    ),
    *(
        case("bmm.default", x, y)
        for x, y in ((f(2, 3, 4), f(2, 4, 1)), (f(0, 3, 4), f(0, 4, 2)), (i(2, 1, 3), i(2, 3, 1)))
    ),
    *(case("addmm.default", x, f(2, 3), f(3, 4), *a) for x in (f(4), f(2, 1), f()) for a in ((), (0.5, 2), (2, 0))),
    case("addmm.default", torch.full((2, 4), NAN), f(2, 3), f(3, 4), 0),
    case("addmm.default", i(4), i(2, 3), i(3, 4), 2, 3),
    *(case("linear.default", x, f(4, 3), *a) for x in (f(2, 3), f(3), f(2, 5, 3)) for a in ((), (f(4),))),
    *(case("_cdist_forward.default", f(2, 3, 4), f(2, 5, 4), p, None) for p in (0.0, 1.0, 2.0, 3.5, INF)),
    case("_cdist_forward.default", f(3, 0), f(2, 0), 2.0, None),
    *(case("_pdist_forward.default", f(4, 3), p) for p in (0.0, 1.0, 2.0, 3.5, INF)),
    case("_pdist_forward.default", f(1, 3)),
]


@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dims", [[1], [0, 1]])
def test_fourier_transforms(dims: list[int], normalization: int) -> None:
    x = f(3, 6)
    for onesided in (True, False):
        expected = torch.ops.aten._fft_r2c(x, dims, normalization, onesided)
        np.testing.assert_allclose(fft_r2c(x.numpy(), dims, normalization, onesided), expected, rtol=1e-5, atol=1e-5)
    half = torch.ops.aten._fft_r2c(x, dims, 0, True)
    expected = torch.ops.aten._fft_c2r(half, dims, normalization, 6)
    np.testing.assert_allclose(fft_c2r(half.numpy(), dims, normalization, 6), expected, rtol=1e-5, atol=1e-5)
