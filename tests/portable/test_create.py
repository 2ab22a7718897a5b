from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.portable.harness import BIG, INF, Case, b, case, f, i, t

from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError
from ptegpu.portable import OutSpec, call

DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool)

CASES: list[Case] = [
    *(case(f"{n}.default", s, dtype=d) for n in ("zeros", "ones") for s in ([2, 3], [], [0, 2]) for d in DTYPES),
    *(case("full.default", [2], v, dtype=d) for v in (3, 0, True, 2.5) for d in DTYPES),
    case("full.default", [2], BIG, dtype=torch.int64),
    case("full.default", [], -INF, dtype=torch.float32),
    *(case("full_like.default", i(2, 3), v, dtype=d) for v in (3, 1.5) for d in DTYPES),
    case("full_like.default", f(0), 1),
    *(case("scalar_tensor.default", v, dtype=d) for v in (3, -2.5, True) for d in DTYPES),
    case("scalar_tensor.default", BIG, dtype=torch.int64),
    *(case("fill.Scalar", x, 3) for x in (f(2, 3), i(2), b(2), f(), f(0))),
    case("fill.Scalar", i(2), BIG),
    *(case("fill.Tensor", x, t(2.5)) for x in (f(2, 3), i(2))),
    *(case("arange.default", e, dtype=d) for e in (5, 4.5, 0) for d in (torch.float32, torch.int64, torch.float16)),
    *(
        case("arange.start_step", *a, dtype=d)
        for a in ((2, 9), (1, 10, 3), (5, -5, -2), (3, 3))
        for d in (torch.float32, torch.int64)
    ),
    *(case("arange.start_step", *a, dtype=torch.float32) for a in ((0.0, 1.0, 0.1), (1, 0, -0.25), (0.5, 100.2, 0.7))),
    case("arange.start_step", BIG, BIG + 3, dtype=torch.int64),
    *(case(f"{n}_indices.default", *a) for n in ("tril", "triu") for a in ((3, 4), (4, 3, -1), (2, 2, 1), (0, 3))),
]


@pytest.mark.parametrize("name", ["aten.empty.memory_format", "dim_order_ops._empty_dim_order.default"])
def test_empty(name: str) -> None:
    (result,) = call(name, [[2, 3]], [OutSpec(DType.I32, (2, 3))])
    assert (result.shape, result.dtype) == ((2, 3), np.int32)


@pytest.mark.parametrize(
    ("name", "mean", "deviation"), [("aten.rand.default", 0.5, 12**-0.5), ("aten.randn.default", 0, 1)]
)
def test_random(name: str, mean: float, deviation: float) -> None:
    (result,) = call(name, [[100, 100]], [OutSpec(DType.F32, (100, 100))])
    assert (result.shape, result.dtype) == ((100, 100), np.float32)
    assert result.mean() == pytest.approx(mean, abs=0.1)
    assert result.std() == pytest.approx(deviation, abs=0.1)


def test_dropout() -> None:
    x = np.ones((100, 100), np.float32)
    outs = [OutSpec(DType.F32, x.shape), OutSpec(DType.BOOL, x.shape)]
    result, mask = call("aten.native_dropout.default", [x, 0.25, True], outs)
    assert mask.mean() == pytest.approx(0.75, abs=0.05)
    np.testing.assert_allclose(result, mask / 0.75, rtol=1e-6)
    result, mask = call("aten.native_dropout.default", [x, 0.25, False], outs)
    assert (result == x).all() and mask.all()


def test_an_int_beyond_the_int32_that_a_program_stores_it_in_is_refused() -> None:
    message = (
        r"the int 3000000000 does not fit the int32 that the program stores it in: export the module with ptegpu, "
        r"which stores such ints in 64 bits"
    )
    with pytest.raises(ExecutionError, match=message):
        call("aten.scalar_tensor.default", [3000000000], [OutSpec(DType.I32, ())])
