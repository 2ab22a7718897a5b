"""Rules of all matrix products: a kernel for few rows serves every smaller number of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.cases import Case, T
from tests.graphs import Sketch, plan_of
from tests.ops import test_linear_q4 as q4
from tests.ops import test_linear_q8 as q8
from tests.oracle import check

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Arg, Tensor
from ptegpu.ops import packed_gemv
from ptegpu.ops.product import VARIANTS, Packed, Product, choose
from ptegpu.plan.plan import Kernel
from ptegpu.plan.target import Target

Make = Callable[[int], Case]


def linear(m: int) -> Case:
    return Case("aten.linear.default", (T((m, 68)), T((9, 68)), T((9,))))


def swapped(m: int) -> Case:
    """Return a product with few columns: the kernel treats the weight's rows as the few ones."""
    return Case("aten.linear.default", (T((20, 68)), T((m, 68)), T((m,))))


def mm(m: int) -> Case:
    return Case("aten.mm.default", (T((m, 70)), T((70, 30))))


def bmm(m: int) -> Case:
    return Case("aten.bmm.default", (T((3, m, 40)), T((3, 40, 10))))


MAKERS: list[tuple[Make, int]] = [  # and the maximum rows of its kernel for few rows
    (lambda m: q4.q4((m,), 64, 21, 32, bias=True), 8),
    (lambda m: q4.q4((m,), 36, 10, 12), 8),
    (lambda m: q4.c8((m,), 20, 9), 8),
    (lambda m: q8.dq((m,), 64, 9, 32, bias=True), 4),
    (lambda m: q8.q8((m,), 37, 7), 4),
    (lambda m: q8.to8((m,), 64, 8), 4),
    (linear, 8),
    (swapped, 8),
    (mm, 4),
    (bmm, 4),
]
NAMES = ["q4", "q4, groups of 12", "c8", "dq", "q8", "to8", "linear", "swapped", "mm", "bmm"]


@pytest.mark.parametrize("make", [m for m, _ in MAKERS], ids=NAMES)
@pytest.mark.parametrize("m", range(1, 10))
def test_every_number_of_rows(make, m):
    check(make(m))


@pytest.mark.slow
@pytest.mark.parametrize("make", [m for m, _ in MAKERS], ids=NAMES)
@pytest.mark.parametrize("m", [2, 3, 5, 7])
def test_every_number_of_rows_without_subgroups(make, m):
    check(make(m), f16=False, subgroups=False, limits="browser")


def kernels(case: Case) -> list[Kernel]:
    """Return a case's kernels in the order of their dispatches."""
    s = Sketch()

    def argument(a: object) -> Arg:
        if not isinstance(a, T):
            return a  # type: ignore[return-value]
        return s.constant(np.zeros(a.shape, a.dtype.numpy)) if a.constant else s.input(*a.shape, dtype=a.dtype)

    result = s.tensor(case.op, *map(argument, case.args), dtype=DType.I8 if "q8ta_linear" in case.op else DType.F32)
    plan, _ = plan_of(s.returns(result))
    return [plan.kernels[d.kernel] for d in plan.dispatches]


@pytest.mark.parametrize("make, most", MAKERS, ids=NAMES)
def test_numbers_of_rows_share_kernels(make, most):
    kernels_by_rows = {m: kernels(make(m)) for m in range(1, most + 2)}
    exact = "linear_q4" in make(1).op or "int8pack" in make(1).op  # separate kernels for 4 and 8 rows
    classes = [[1], [2], [3], [4], [5, 6, 7], [8]] if exact else [[1], [2], [3, 4], [5, 6, 7, 8]]
    for members in (c for c in classes if c[-1] <= most):
        assert all(kernels_by_rows[m] == kernels_by_rows[members[0]] for m in members)
    firsts = [kernels_by_rows[c[0]] for c in classes if c[-1] <= most] + [kernels_by_rows[most + 1]]
    assert all(a != b for k, a in enumerate(firsts) for b in firsts[:k])


def product(m: int, n: int, k: int, **options: object) -> Product:
    x, w = Tensor("x", DType.F32, (m, k)), Tensor("w", DType.U8, (n, k // 2))
    scales = Tensor("s", DType.F32, (k // 32, n))
    return Product(x, w, True, 1, m, n, k, x, (m * n, n, 1), packed=Packed(scales, 4, 32), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "m, n, k, name",
    [
        (1, 2048, 2048, "packed gemv"),
        (packed_gemv.MAX_ROWS, 2048, 2048, "packed gemv"),
        (packed_gemv.MAX_ROWS + 1, 2048, 2048, "gemm 32 in slices"),
        (512, 2048, 2048, "gemm 128"),
    ],
)
def test_choice_of_variant(m, n, k, name):
    assert choose(product(m, n, k), Target()).name == name


def test_names_of_variants_are_their_own():
    assert len({v.name for v in VARIANTS}) == len(VARIANTS)


def test_rows_of_no_elements():
    """A packed weight without columns is not unpacked; the result is the bias."""
    x, weight, scales = T((3, 0)), T((4, 0), DType.I8, constant=True), T((4,), constant=True)
    check(Case("aten._weight_int8pack_mm.default", (x, weight, scales), lambda x, w, s: x @ w.to(x.dtype).T * s))
