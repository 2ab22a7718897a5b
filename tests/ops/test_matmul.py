"""Matrix products: every variant at every alignment, sizes of 0 and 1, biases, split K, dynamic rows."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from tests.cases import ONE_UNIT
from tests.oracle import Case, T, check, graph_of, plan_of, problem

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.graph.graph import Tensor
from ptegpu.ops import nodes, product
from ptegpu.plan.target import Target

F16 = DType.F16
mm = partial(Case, "aten.mm.default")
bmm = partial(Case, "aten.bmm.default")
addmm = partial(Case, "aten.addmm.default")
linear = partial(Case, "aten.linear.default")


def pair(m: int, k: int, n: int, dtype: DType = DType.F32) -> tuple[T, T]:
    return T((m, k), dtype), T((k, n), dtype)


def affine(
    lead: tuple[int, ...], k: int, n: int, *, bias: bool = True, dtype: DType = DType.F32
) -> tuple[T | None, ...]:
    return T((*lead, k), dtype), T((n, k), dtype, constant=True), T((n,), dtype, constant=True) if bias else None


OUTER = [
    mm(pair(1, 1, 1)),
    mm(pair(7, 1, 9)),
    mm(pair(3, 8, 300)),
    mm(pair(5, 0, 3)),
    mm(pair(0, 4, 3)),
    mm(pair(4, 4, 0)),
    mm(pair(0, 0, 0)),
    linear(affine((5,), 0, 3)),
    linear(affine((5,), 0, 3, bias=False)),
    linear(affine((2, 0), 4, 3)),
    linear(affine((2, 3), 4, 0)),
    linear(affine((2, 3), 7, 5)),
    bmm((T((2, 3, 4)), T((2, 4, 5)))),
    bmm((T((0, 3, 4)), T((0, 4, 5)))),
    mm(pair(3, 5, 6, F16)),
]

GEMV = [
    linear(affine((), 64, 5)),
    linear(affine((1,), 9, 1)),
    linear(affine((1,), 129, 70)),
    linear(affine((1, 1), 300, 33, bias=False)),
    linear(affine((1,), 1028, 6)),
    linear(affine((1,), 4096, 3), atol=2e-4),
    linear(affine((1,), 64, 4097)),  # two rows of the weight per workgroup
    linear(affine((1,), 63, 8193)),  # four
    linear(affine((3,), 64, 8194)),
    linear(affine((2,), 100, 11)),
    linear(affine((3,), 101, 11)),
    linear(affine((2, 2), 516, 7)),
    linear(affine((37,), 64, 1)),
    linear(affine((9, 5), 33, 3)),
    linear(affine((1,), 128, 17, dtype=F16)),
    linear(affine((1,), 64, 20, dtype=F16)),
    linear(affine((3,), 127, 8, dtype=F16)),
    *(linear(affine((m,), 36, 9, bias=m > 6)) for m in (5, 6, 7, 8)),
    linear(affine((8,), 9, 4100)),
    mm(pair(40, 20, 1)),
    mm(pair(1, 20, 1)),
    mm(pair(1, 64, 64)),
    mm(pair(1, 33, 130)),
    mm(pair(2, 70, 31)),
    mm(pair(3, 130, 36)),
    mm(pair(4, 41, 261)),
    mm(pair(1, 700, 40)),  # split K
    mm(pair(4, 515, 33)),
    mm(pair(2, 600, 44, F16)),
    mm(pair(1, 40, 35, F16)),
    bmm((T((3, 1, 20)), T((3, 20, 9)))),
    bmm((T((3, 2, 20)), T((3, 20, 1)))),
    bmm((T((2, 4, 600)), T((2, 600, 12)))),
    Case("aten.mv.default", (T((7, 33)), T((33,)))),
    Case("aten.mv.default", (T((7, 0)), T((0,)))),
    Case("aten.dot.default", (T((300,)), T((300,)))),
    Case("aten.dot.default", (T((0,)), T((0,)))),
]

GEMM = [
    mm(pair(5, 9, 6)),
    mm(pair(5, 16, 8)),
    mm(pair(33, 20, 35)),
    mm(pair(65, 35, 36)),
    mm(pair(32, 32, 32)),
    mm(pair(34, 18, 68, F16)),
    mm(pair(40, 36, 6, F16)),
    mm(pair(9, 517, 10)),  # split K
    mm(pair(9, 1024, 12)),
    mm(pair(9, 600, 10, F16)),
    bmm((T((3, 5, 20)), T((3, 20, 36)))),
    bmm((T((2, 35, 17)), T((2, 17, 7)))),
    bmm((T((2, 6, 1030)), T((2, 1030, 8)))),
    linear(affine((10,), 9, 9)),
    linear(affine((33,), 20, 36)),
    linear(affine((2, 17), 33, 35)),
    linear(affine((3, 2, 2), 16, 32, bias=False)),
    linear(affine((40,), 40, 40, dtype=F16)),
    linear(affine((11,), 19, 9, dtype=F16)),
    linear(affine((12,), 520, 9)),
    linear((T((12, 36)), T((9, 36), F16, constant=True), None), reference=lambda x, w, _: x @ w.to(x.dtype).T),
]

BIASES = [
    *(addmm((T(shape), *pair(6, 20, 9))) for shape in [(6, 9), (9,), (6, 1), (1, 9), (1, 1), (1,), ()]),
    *(addmm((T((9,)), *pair(m, k, 9), beta, alpha)) for m, k in [(6, 20), (2, 20), (6, 3), (6, 530), (1, 0)]
      for beta, alpha in [(2, 0.5), (0, 3), (-1.5, 0)]),
    addmm((T((9,), values=(math.nan,) * 9), *pair(6, 20, 9), 0, 1), note=" beta of 0 ignores NaN"),
    addmm((T((4,), F16), *pair(6, 20, 4, F16), 2, 0.5)),
    addmm((T((0, 4)), *pair(0, 20, 4))),
    Case("aten.baddbmm.default", (T((2, 3, 5)), T((2, 3, 20)), T((2, 20, 5)), 2, 0.5)),
    Case("aten.baddbmm.default", (T((2, 7, 1)), T((2, 7, 20)), T((2, 20, 5)), 1, 1)),
    Case("aten.baddbmm.default", (T((5,)), T((2, 6, 20)), T((2, 20, 5)), 1, 1)),
]  # fmt: skip

WIDE = {DType.I32: (-(2**31), 2**31 - 1), DType.I8: (-128, 127), DType.U8: (0, 255)}  # so that sums wrap


def ints(shape: tuple[int, ...], dtype: DType) -> T:
    return T(shape, dtype, *WIDE[dtype])


INTS = [
    case
    for d in WIDE
    for case in (
        *(mm((ints((m, k), d), ints((k, n), d))) for m, k, n in [(3, 5, 4), (1, 33, 9), (37, 70, 36), (3, 0, 2)]),
        bmm((ints((2, 9, 40), d), ints((2, 40, 7), d))),
        *(addmm((ints((4,), d), ints((3, 9), d), ints((9, 4), d), *scale)) for scale in [(), (2, -3), (0, 1)]),
        Case("aten.baddbmm.default", (ints((3, 1), d), ints((2, 3, 9), d), ints((2, 9, 4), d), 2, 3)),
        linear((ints((2, 3, 9), d), ints((4, 9), d), ints((4,), d))),
        Case("aten.mv.default", (ints((7, 33), d), ints((33,), d))),
        Case("aten.dot.default", (ints((33,), d), ints((33,), d))),
    )
]
UNUSUAL = [  # shapes of weight and bias that no PyTorch module has
    linear((T((2, 9)), T((9,)), None)),
    linear((T((2, 3, 9)), T((9,)), None)),
    linear((T((9,)), T((9,)), T(()))),
    linear((T((2, 3, 9)), T((4, 9)), T((3, 4)))),
    linear((T((2, 3, 9), F16), T((4, 9), F16), T((2, 1, 4), F16))),
    linear((T((2, 3, 9)), T((4, 9)), T((1,)))),
    linear((T((2, 3, 9)), T((4, 9)), T(()))),
    linear((T((6, 9)), T((4, 9)), T((6, 1)))),
]

CASES = [*OUTER, *GEMV, *GEMM, *BIASES, *INTS, *UNUSUAL]

BENCHMARKS = [  # at real sizes
    *(mm(pair(n, n, n)) for n in (512, 1024, 2048, 4096)),
    mm(pair(2048, 2048, 2048, F16)),
    bmm((T((32, 512, 64)), T((32, 64, 512)))),
    bmm((T((32, 512, 512)), T((32, 512, 64)))),
    *(linear(affine((m,), 2048, 8192)) for m in (1, 4, 8, 16, 64, 512)),
    linear(affine((1,), 8192, 2048, dtype=F16)),
    linear(affine((512,), 8192, 2048, dtype=F16)),
    addmm((T((768,)), T((1024, 768)), T((768, 768)), 1, 1)),
]
HALVES = [c for c in CASES if c.args[0].dtype is F16]
BROWSER = [*OUTER[::3], *GEMV[::2], *GEMM[::3], *BIASES[::5], *INTS[::7], *HALVES]
SOFTWARE = [*GEMV[::2], *GEMM[::2], *BIASES[::2], *UNUSUAL]


@pytest.mark.parametrize("case", [GEMV[4], GEMV[8], GEMV[20], GEMV[25], GEMM[2]], ids=str)
def test_workgroups_of_128(case):
    check(case, subgroups=False, max_invocations=128)


@pytest.mark.parametrize("limits", [{"max_invocations": 128}, {}], ids=["64", "128"])
@pytest.mark.parametrize(
    "case",
    [
        mm(pair(130, 36, 132)),
        mm(pair(70, 17, 129)),
        linear(affine((129,), 33, 70)),
        bmm((T((2, 68, 40), F16), T((2, 40, 72), F16))),
    ],
    ids=str,
)
def test_larger_tiles(case, limits):
    check(case, device_class=ONE_UNIT, **limits)


@pytest.mark.parametrize("size", [(1, 40, 8), (8, 40, 8), (1, 5, 3), (1, 600, 12), (9, 600, 12)])
@pytest.mark.parametrize("op", ["aten.mm.default", "aten.linear.default"])
def test_infinities_stay_where_they_belong(op, size):
    """Elements beyond K, M or N never enter a sum, not even multiplied by zero."""
    m, k, n = size
    x = np.ones((m, k))
    x[-1, -1] = math.inf
    w = np.ones((k, n) if op == "aten.mm.default" else (n, k))
    w[-1, -1] = -math.inf
    args = (T(x.shape, values=tuple(x.ravel())), T(w.shape, values=tuple(w.ravel())))
    check(Case(op, args))


CHOICES = [
    ((1, 4096, 8, True), "outer"),
    ((1, 4096, 4096, True), "gemv rows"),
    ((8, 4096, 4096, True), "gemv rows"),
    ((9, 4, 4096, True), "gemv rows, swapped"),
    ((1, 4096, 4096, False), "gemv columns"),
    ((5, 4, 4096, False), "gemm 32 in slices"),
    ((9, 4096, 4096, True), "gemm 32 in slices"),
    ((16, 128256, 2048, True), "gemm 32"),
    ((512, 2048, 2048, True), "gemm 128"),
    ((64, 2048, 2048, True), "gemm 64"),
    ((2048, 2048, 2048, True), "gemm 128"),
]


@pytest.mark.parametrize("size, name", CHOICES, ids=str)
def test_choice_of_variant(size, name):
    m, n, k, transposed = size
    x = Tensor("x", DType.F32, (m, k))
    p = product.Product(x, x, transposed, 1, m, n, k, x, (m * n, n, 1))
    assert product.choose(p, Target()).name == name


def test_the_last_variant_has_no_condition():
    assert product.VARIANTS[-1].when is product.Algorithm("", product.one_by_one).when


@pytest.mark.parametrize("dtype", [DType.F32, F16])
@pytest.mark.parametrize("size", [(1, 40, 36), (7, 40, 36), (7, 33, 35), (3, 5, 9), (2, 600, 9)])
@pytest.mark.parametrize("f16", [True, False])
def test_weight_in_parts(size, dtype, f16):
    m, k, n = size
    limit = max((n + 2) // 3 * k * dtype.size, m * n * 4, m * k * 4) + 16
    check(linear(affine((m,), k, n, dtype=dtype)), f16=f16, max_binding_bytes=limit)


def test_each_part_is_one_dispatch():
    case = linear(affine((1,), 64, 32))
    arrays = {id(a): np.zeros(a.shape, np.float32) for a in case.args if a}
    graph, _ = graph_of(case, arrays, [np.zeros((1, 32), np.float32)])
    plan = plan_of(graph, Target(max_binding_bytes=64 * 4 * 12))
    assert [b.nbytes for b in plan.buffers if b.role == "constant"] == [3072, 3072, 2048, 128]
    assert len(plan.dispatches) == 3


@pytest.mark.parametrize("s", [0, 1, 2, 7, 16, 33])
def test_live_rows(s):
    """Decode and prefill take different kernels on the buffers of one graph."""
    _, weight, bias = affine((), 40, 36)
    check(linear((T((1, s, 40), limit=(1, 33, 40)), weight, bias)))


REFUSED = [
    (mm, pair(2, 3, 4)[:1] + pair(2, 3, 4)[:1], "'y' is arg1:float32[2, 3], but must be [k, n] where m = 2, k = 3"),
    (mm, (T((2, 3, 1)), T((3, 1))), "'x' is arg0:float32[2, 3, 1], but must be [m, k]"),
    (
        bmm,
        (T((2, 3, 4)), T((3, 4, 5))),
        "'y' is arg1:float32[3, 4, 5], but must be [b, k, n] where b = 2, m = 3, k = 4",
    ),
    (linear, (T(()), T((3, 4))), "'x' is arg0:float32[], but must be [..., k]"),
    (linear, (T((2, 4)), T((3, 5))), "'weight' is arg1:float32[3, 5], but must be [..., k] where k = 4"),
    (addmm, (T((3,)), *pair(2, 3, 4)), "shapes [3], [2, 4] do not broadcast"),
    (addmm, (T((5, 2, 4)), *pair(2, 3, 4)), "a bias of shape [5, 2, 4] does not broadcast to [2, 4]"),
]


@pytest.mark.parametrize("make, args, message", REFUSED, ids=str)
def test_refused(make, args, message):
    case = make(args)
    arrays = {id(a): np.zeros(a.shape, np.float32) for a in args}
    graph, _ = graph_of(case, arrays, [np.zeros((2, 4), np.float32)])
    with pytest.raises(ShapeError) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"


def test_a_bias_that_is_spread_first_is_no_single_work() -> None:
    solved = problem(linear((T((2, 3, 9)), T((4, 9)), T((3, 4)))))
    graph, _ = graph_of(solved.case, solved.arrays, solved.eager)
    assert nodes.product(graph.nodes[0]) is None
