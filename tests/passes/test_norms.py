"""Norms fused into the products of their few rows: the results stay the same."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.cases import close, device, plan_of, run_plan
from tests.passes import products
from tests.passes.products import MANY_BUFFERS, TOLERANCE, Builder, run
from tests.passes.test_siblings import LINEAR, SIZES, WAYS, labels, launched

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Node, Tensor
from ptegpu.kernels.gemv import Gemv
from ptegpu.ops import REGISTRY, packed_gemv
from ptegpu.passes.norms import fuse_norms
from ptegpu.passes.siblings import fuse_siblings
from ptegpu.passes.split import takes_parts
from ptegpu.plan.target import Target

F32, F16 = DType.F32, DType.F16
NORM, SOFTMAX = "et_vk.rms_norm.default", "aten._softmax.default"
EPS = 1e-5
PASSES = (fuse_siblings, fuse_norms)
join, same = partial(products.join, passes=PASSES), partial(products.same, passes=PASSES)


class Normed(Builder):
    """A graph that starts with the norm `y` of an input `x` whose rows differ in magnitude."""

    def __init__(
        self, m: int, k: int, *, weight: DType | None = None, magnitude: float = 1.0, **options: DType
    ) -> None:
        super().__init__(**options)
        self.x = self.input(m, k)
        self.arrays[0] *= (magnitude * np.arange(1, m + 1, dtype=np.float32)[:, None]).astype(self.dtype.numpy)
        self.y = self.norm(self.x, weight)

    def norm(self, x: Tensor, weight: DType | None = None) -> Tensor:
        return self.apply(NORM, x, self.constant(x.shape[-1], dtype=weight or self.dtype), EPS, shape=x.shape)

    def added(self, a: Tensor, b: Tensor) -> Tensor:
        return self.apply("aten.add.Tensor", a, b, 1, shape=a.shape)


def single(m: int, k: int, ns: tuple[int, ...], group: int, *, bias: bool = False, **options: object) -> Normed:
    b = Normed(m, k, **options)  # type: ignore[arg-type]
    b.graph.outputs = [b.linear(b.y, ns[0], group, bias=bias)]
    return b


def residual(m: int, k: int, ns: tuple[int, ...], group: int, *, bias: bool = False, **options: object) -> Normed:
    b = Normed(m, k, **options)  # type: ignore[arg-type]
    b.graph.outputs = [b.added(b.input(m, ns[0]), b.linear(b.y, ns[0], group, bias=bias))]
    return b


def projections(m: int, k: int, ns: tuple[int, ...], group: int, *, bias: bool = False, **options: object) -> Normed:
    """Build the projections of queries, keys and values, with biases for all but the last."""
    b = Normed(m, k, **options)  # type: ignore[arg-type]
    b.graph.outputs = [b.linear(b.y, n, group, bias=bias and n is not ns[-1]) for n in ns]
    return b


def swiglu(m: int, k: int, ns: tuple[int, ...], group: int, *, bias: bool = False, **options: object) -> Normed:
    b = Normed(m, k, **options)  # type: ignore[arg-type]
    gate, up = (b.linear(b.y, ns[0], group, bias=bias) for _ in range(2))
    b.graph.outputs = [b.gated(gate, up)]
    return b


MAKERS = [single, residual, projections, swiglu]
PRODUCTS = {single: 1, residual: 1, projections: 3, swiglu: 2}  # dispatches of each without fusion


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_rows_of_every_number_and_length(make, size):
    m, k, ns, _ = size
    is_fused = m <= packed_gemv.MAX_ROWS
    products = len(ns) if make is projections else PRODUCTS[make]
    same(lambda: make(*size, bias=k > 64), 1 if is_fused else 1 + products)


@pytest.mark.slow
@pytest.mark.parametrize("f16", [True, False])
@pytest.mark.parametrize(
    "options", [{"dtype": F16}, {"dtype": F16, "weight": F32}, {"weight": F16}, {"dtype": F16, "scales": F32}], ids=str
)
@pytest.mark.parametrize("m", [1, 3, 12])
def test_halves(m, options, f16):
    for make in (residual, projections, swiglu):
        same(lambda make=make: make(m, 68, (20, 11, 8), 4, bias=True, **options), None, f16=f16)


FEATURES = {"f16": False, "subgroups": False, "limits": "browser"}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES[::2], ids=str)
def test_in_a_browser(size):
    """The limit is 8 storage buffers: the norm and two products need 8, a pair needs 7, or 9 with two biases."""
    m, _, ns, _ = size
    is_fused = m <= packed_gemv.MAX_ROWS
    same(lambda: single(*size, bias=True), 1 if is_fused else 2, **FEATURES)
    same(lambda: residual(*size, bias=True), 1 if is_fused else 2, **FEATURES)
    same(lambda: projections(*size), -(-len(ns) // 2) if is_fused else 1 + len(ns), **FEATURES)
    same(lambda: projections(*size, bias=True), None, **FEATURES)
    same(lambda: swiglu(*size), 1 if is_fused else 3, **FEATURES)
    same(lambda: swiglu(*size, bias=True), 2 if is_fused else 3, **FEATURES)


@pytest.mark.slow
@pytest.mark.parametrize("make", [projections, swiglu])
@pytest.mark.parametrize("m", [2, 8])
def test_where_workgroup_memory_is_short(make, m, monkeypatch):
    """Sets of 256 lanes cannot add up the sums and the squares of 8 rows in 16 KiB."""
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(Gemv(rows=2, lanes=256, words=1)),))
    same(lambda: make(m, 1032, (5, 4), 8), 1, **FEATURES)


@pytest.mark.slow
def test_workgroups_of_128():
    same(lambda: projections(3, 512, (33, 9), 32), 1, subgroups=False, max_invocations=128)
    same(lambda: swiglu(3, 512, (33,), 32), 1, subgroups=False, max_invocations=128)


@pytest.mark.slow
@pytest.mark.parametrize("subgroups", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_to_share_out(way, subgroups, monkeypatch):
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(way),))
    same(lambda: single(1, 256, (21,), 32), 1, subgroups=subgroups)
    same(lambda: projections(1, 256, (21, 40), 32, bias=True), 1, subgroups=subgroups)
    same(lambda: swiglu(2, 100, (12,), 20), 1, subgroups=subgroups)
    same(lambda: residual(3, 30, (12,), 10), 1, subgroups=subgroups)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_workgroups_that_stay(kept_bytes):
    options = {"resident": 2, "kept_bytes": kept_bytes, "precision": "exact"}
    same(lambda: single(1, 256, (21,), 32), None, **options)
    same(lambda: projections(1, 256, (21, 40), 32, bias=True), None, **options)
    same(lambda: swiglu(1, 96, (44,), 32), None, **options)
    same(lambda: residual(1, 2080, (12,), 32), None, **options)


@pytest.mark.parametrize("m", [1, 4, 12])
def test_weights_of_bytes(m):
    def make() -> Builder:
        b = Normed(m, 37)
        b.graph.outputs = [b.bytes_linear(b.y, n) for n in (9, 4)]
        return b

    same(make, 1 if m <= packed_gemv.MAX_ROWS else 3)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("m", range(2, 9))
def test_every_number_of_rows(make, m):
    """A kernel for a maximum number of rows computes and stores only the rows of the call."""
    same(lambda: make(m, 40, (9, 12), 8, bias=True), 1, subgroups=m % 2 == 0)


@pytest.mark.parametrize("make", MAKERS)
def test_a_weight_in_parts(make):
    for options in ({}, {"dtype": F16}):
        same(lambda options=options: make(2, 64, (40, 8), 32, **options), None, max_binding_bytes=640, f16=False)


def weights(node: Node) -> np.ndarray:
    """Return the weights of a product, (N, K), in float64."""
    x, packed, scales, group, *_ = node.args
    k = x.shape[-1]  # type: ignore[union-attr]
    pairs = packed.data  # type: ignore[union-attr]
    quantized = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(pairs), -1)[:, :k].astype(np.float64) - 8
    return quantized * np.repeat(scales.data.T.astype(np.float64), group, axis=1)[: len(pairs), :k]  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("size", [(1, 64), (1, 2048), (3, 68), (8, 516)], ids=str)
def test_as_in_float64(size, magnitude):
    b = projections(*size, (20, 9), 4, magnitude=magnitude)
    norm, *products = b.graph.nodes
    x, g = b.arrays[0].astype(np.float64), norm.args[1].data.astype(np.float64)  # type: ignore[union-attr]
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * g
    expected = [y @ weights(n).T for n in products]
    got, count = run(b, PASSES)
    assert count == 1
    for a, w in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, w, rtol=0, atol=TOLERANCE[F32] * float(np.abs(w).max()))


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_live_rows(make):
    """A plan for at most 12 rows runs with fewer and with none."""
    b, gpu = make(12, 64, (20, 12, 12), 32), device()
    join(b)
    plan = plan_of(b.graph, gpu.target, dynamic=True)
    expected_rows, _ = run(make(12, 64, (20, 12, 12), 32), ())
    counts = []
    for m in (12, 1, 8, 0, 3, 12):
        inputs = [a[:m] for a in b.arrays]
        counts.append(launched(plan, inputs))
        for got, want in zip(run_plan(plan, inputs, gpu), expected_rows, strict=True):
            close(got, want[:m], TOLERANCE[F32])
    assert counts == [1 + PRODUCTS[make], 1, 1, 0, 1, 1 + PRODUCTS[make]]


def last(batch: int, length: int, k: int, index: int = -1, *, returned: bool = False, **options: object) -> Normed:
    """Build a product of the norm of one row per batch, such as the last token of a prompt."""
    b = Normed(1, 4)
    b.graph.nodes.clear()
    b.graph.inputs.clear()
    b.arrays.clear()
    x = b.input(batch, length, k)
    row = b.apply("aten.select_copy.int", x, 1, index, shape=(batch, k))
    b.graph.outputs = [b.linear(b.norm(row), 12, 4, **options), *([row] if returned else [])]  # type: ignore[arg-type]
    return b


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("k", [64, 30])
def test_a_row_of_a_larger_tensor(k, staged, monkeypatch):
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(Gemv(rows=2, lanes=32, staged=staged)),))
    for index in (-1, 0, 3):
        same(lambda index=index: last(1, 5, k, index), 1)
    same(lambda: last(1, 1, k), 1)
    same(lambda: last(2, 5, k), 2)  # the rows are not contiguous
    same(lambda: last(1, 5, k, returned=True), None)


def test_a_row_that_is_an_output_stays() -> None:
    assert join(last(1, 5, 64)) == ["fused(select_copy+rms_norm+linear_q4gsw)"]
    assert join(last(1, 5, 64, returned=True)) == ["aten.select_copy.int", "fused(rms_norm+linear_q4gsw)"]


def test_labels_name_the_calls_that_a_dispatch_serves() -> None:
    b = projections(1, 64, (8, 4, 4), 32)
    assert join(b) == ["fused(rms_norm+linear_q4gsw+linear_q4gsw+linear_q4gsw)"]
    assert b.graph.nodes[0].name == f"{NORM} #0, {LINEAR} #1, {LINEAR} #2, {LINEAR} #3"
    assert labels(b, MANY_BUFFERS) == [f"{NORM} #0, {LINEAR} #1, {LINEAR} #2, {LINEAR} #3"]
    assert labels(b, Target()) == [f"{NORM} #0, {LINEAR} #1, {LINEAR} #2", f"{NORM} #0, {LINEAR} #3"]
    b = projections(9, 64, (8, 4), 32)
    join(b)
    assert labels(b) == [f"{NORM} #0", f"{LINEAR} #1", f"{LINEAR} #2"]
    b = swiglu(1, 64, (8,), 32)
    assert join(b) == ["fused(rms_norm+linear_q4gsw+linear_q4gsw+sigmoid+mul+mul)"]
    assert labels(b) == [f"{NORM} #0, {LINEAR} #1, {LINEAR} #2 and 3 after it"]
    b = residual(1, 64, (8,), 32)
    assert join(b) == ["fused(rms_norm+linear_q4gsw+add)"]
    assert labels(b) == [f"{NORM} #0, {LINEAR} #1 and 1 after it"]
    b = single(1, 64, (8,), 32)
    assert join(b) == ["fused(rms_norm+linear_q4gsw)"]
    assert labels(b) == [f"{NORM} #0, {LINEAR} #1"]


def test_a_joined_node_has_the_arguments_and_results_of_all() -> None:
    b = projections(1, 64, (8, 4), 32)
    norm, *products = b.graph.nodes
    join(b)
    (only,) = b.graph.nodes
    assert only.outs == (b.y, *b.graph.outputs)
    assert list(dict.fromkeys(only.values())) == [b.x, norm.args[1], *(v for n in products for v in n.args[1:3])]
    assert [v for v in only.args if takes_parts(only, v)] == [n.args[1] for n in products]


def test_a_norm_moves_down_to_its_products() -> None:
    b = Normed(1, 64)
    between = b.apply(SOFTMAX, b.x, -1, False, shape=b.x.shape)
    b.graph.outputs = [between, b.linear(b.y, 8)]
    assert join(b) == [SOFTMAX, "fused(rms_norm+linear_q4gsw)"]


def test_layers_one_after_the_other() -> None:
    """Each norm fuses with its own products, which also add the rows that the norm reads."""

    def make() -> Builder:
        b = Normed(1, 64)
        h = b.added(b.x, b.linear(b.y, 64))
        y = b.norm(h)
        gated = b.gated(b.linear(y, 24, 8), b.linear(y, 24, 8))
        b.graph.outputs = [b.added(h, b.linear(gated, 64, 8))]
        return b

    assert join(make()) == [
        "fused(rms_norm+linear_q4gsw+add)",
        "fused(rms_norm+linear_q4gsw+linear_q4gsw+sigmoid+mul+mul)",
        "fused(linear_q4gsw+add)",
    ]
    same(make, 3)


def test_products_that_also_add_the_norm_itself() -> None:
    """They fuse into one node, which computes the norm first."""

    def make() -> Builder:
        b = Normed(2, 64)
        b.graph.outputs = [b.added(b.y, b.linear(b.y, 64))]
        return b

    assert join(make()) == ["fused(rms_norm+linear_q4gsw+add)"]
    same(make, 2)


def another_user(b: Normed) -> None:
    b.graph.outputs.append(b.apply(SOFTMAX, b.y, -1, False, shape=b.y.shape))


def output(b: Normed) -> None:
    b.graph.outputs.append(b.y)


def writeback(b: Normed) -> None:
    b.graph.writebacks.append((Tensor("state", F32, b.y.shape, "state"), b.y))


def x_that_is_written(b: Normed) -> None:
    outs = (Tensor("s", F32, b.x.shape),)
    b.graph.nodes.insert(1, Node(REGISTRY["aten.sigmoid.default"], (b.x,), outs, "write", (b.x,)))


def weight_that_varies(b: Normed) -> None:
    weight = Tensor("g", F32, (b.x.shape[-1],), "input")
    b.graph.inputs.append(weight)
    b.graph.nodes[0].args = (b.x, weight, EPS)


def other_norm(b: Normed) -> None:
    norm = b.graph.nodes[0]
    norm.op = REGISTRY["aten.rms_norm.default"]
    norm.args = (b.x, (64,), norm.args[1], EPS)


def other_product(b: Normed) -> None:
    product = b.graph.nodes[-1]
    product.op = REGISTRY["aten.linear.default"]
    product.args = (b.y, b.constant(8, 64, dtype=F32))


@pytest.mark.parametrize(
    "change",
    [another_user, output, writeback, x_that_is_written, weight_that_varies, other_norm, other_product],
)
def test_what_stays_apart(change):
    b = single(1, 64, (8,), 32)
    change(b)
    before = list(b.graph.nodes)
    fuse_norms(b.graph)
    assert b.graph.nodes == before
