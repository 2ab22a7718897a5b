"""Products of the same x: they become one node, and one dispatch for few rows, with the same results."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.cases import close, device, plan_of, run_plan, sizes_of
from tests.passes import products
from tests.passes.products import MANY_BUFFERS, TOLERANCE, Builder, run

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Node, Tensor
from ptegpu.kernels.gemv import Gemv
from ptegpu.ops import REGISTRY, packed_gemv
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.passes.siblings import MAX_DISTANCE, MAX_SIBLINGS, fuse_siblings
from ptegpu.passes.split import takes_parts
from ptegpu.plan.plan import Plan
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import Target

F32, F16, U8, I8 = DType.F32, DType.F16, DType.U8, DType.I8
PASSES = (fuse_siblings,)
join, same = partial(products.join, passes=PASSES), partial(products.same, passes=PASSES)


def projections(m: int, k: int, sizes: tuple[int, ...], group: int, *, bias: bool = False, **options: DType) -> Builder:
    """Build the projections of queries, keys and values, with biases for all but the last."""
    b = Builder(**options)
    x = b.input(m, k)
    last = len(sizes) - 1
    b.graph.outputs = [b.linear(x, n, group, bias=bias and k < last) for k, n in enumerate(sizes)]
    return b


def swiglu(m: int, k: int, n: int, group: int, *, bias: bool = False, **options: DType) -> Builder:
    b = Builder(**options)
    x = b.input(m, k)
    gate, up = b.linear(x, n, group, bias=bias), b.linear(x, n, group, bias=bias)
    b.graph.outputs = [b.gated(gate, up)]
    return b


def geglu(m: int, k: int, n: int, group: int, **options: DType) -> Builder:
    """Build GeGLU whose last product is the gate, and add another tensor of the same shape."""
    b = Builder(**options)
    x, skip = b.input(m, k), b.input(m, n)
    up, gate = b.linear(x, n, group, bias=True), b.linear(x, n, group)
    gelu = b.apply("aten.gelu.default", gate, "tanh", shape=(m, n))
    gated = b.apply("aten.mul.Tensor", gelu, up, shape=(m, n))
    b.graph.outputs = [b.apply("aten.add.Tensor", gated, skip, 1, shape=(m, n))]
    return b


SIZES = [  # rows, K, N of each, group
    (1, 64, (20, 12, 12), 32),
    (1, 96, (33, 7, 5), 96),
    (1, 36, (10, 6, 9), 12),  # K % 8 == 4: the packer pads it
    (1, 60, (6, 3), 6),
    (1, 4, (3, 4), 4),
    (1, 4128, (4, 3), 32),
    (1, 64, (8195, 9), 32),
    (2, 64, (20, 12, 12, 8), 32),
    (5, 68, (9, 8), 4),
    (8, 72, (18, 7), 36),
    (9, 64, (20, 12, 12), 32),
    (40, 70, (33, 9), 14),
]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_projections(size):
    dispatches = 1 if size[0] <= packed_gemv.MAX_ROWS else len(size[2])
    same(lambda: projections(*size, bias=size[1] > 64), dispatches)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pairs(size):
    m, k, ns, group = size
    dispatches = 1 if m <= packed_gemv.MAX_ROWS else 2
    same(lambda: (geglu if m in (2, 9) else swiglu)(m, k, ns[0], group), dispatches)


@pytest.mark.slow
@pytest.mark.parametrize("f16", [True, False])
@pytest.mark.parametrize("options", [{"dtype": F16}, {"dtype": F16, "scales": F32}, {"scales": F16}], ids=str)
@pytest.mark.parametrize("m", [1, 12])
def test_halves(m, options, f16):
    same(lambda: projections(m, 64, (20, 11), 32, bias=True, **options), None, f16=f16)
    same(lambda: swiglu(m, 64, 21, 32, bias=True, **options), None, f16=f16)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES[::2], ids=str)
def test_in_a_browser(size):
    """The limit is 8 storage buffers: two products need 7, with biases 8 or 9; a pair needs 6 to 8."""
    m, k, ns, group = size
    features = {"f16": False, "subgroups": False, "limits": "browser"}
    is_fused = m <= packed_gemv.MAX_ROWS
    same(lambda: projections(*size), -(-len(ns) // 2) if is_fused else len(ns), **features)
    same(lambda: projections(m, k, (ns[1],) * 4, group, bias=True), 3 if is_fused else 4, **features)
    same(lambda: swiglu(m, k, ns[0], group, bias=True), 1 if is_fused else 2, **features)


def test_workgroups_of_128():
    same(lambda: projections(3, 512, (33, 9), 32), 1, subgroups=False, max_invocations=128)
    same(lambda: swiglu(3, 512, 33, 32), 1, subgroups=False, max_invocations=128)


WAYS = [
    Gemv(rows=1, lanes=8, words=1, slots=4),
    Gemv(rows=2, lanes=16, words=2, slots=2),
    Gemv(rows=8, lanes=32, words=2, slots=2, staged=True),
    Gemv(rows=1, lanes=256, words=1, staged=True),
    Gemv(rows=3, lanes=4, words=1, slots=5),
]


@pytest.mark.slow
@pytest.mark.parametrize("subgroups", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_to_share_out(way, subgroups, monkeypatch):
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(way),))
    same(lambda: projections(1, 256, (21, 40), 32, bias=True), 1, subgroups=subgroups)
    same(lambda: swiglu(2, 100, 12, 20), 1, subgroups=subgroups)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_workgroups_that_stay(kept_bytes):
    options: dict[str, Any] = {"resident": 2, "kept_bytes": kept_bytes, "precision": "exact"}
    same(lambda: projections(1, 256, (21, 40, 8), 32, bias=True), None, **options)
    same(lambda: swiglu(1, 96, 44, 32, bias=True), None, **options)
    same(lambda: geglu(1, 4096, 12, 32), None, **options)


@pytest.mark.parametrize("m", [1, 4, 12])
def test_weights_of_bytes(m):
    def make() -> Builder:
        b = Builder()
        x = b.input(m, 37)
        b.graph.outputs = [b.bytes_linear(x, n) for n in (9, 4, 4)]
        return b

    same(make, 1 if m <= packed_gemv.MAX_ROWS else 3)


def test_rows_that_are_no_whole_words():
    def make() -> Builder:
        b = Builder()
        x = b.input(1, 30)
        gate, up = b.linear(x, 7, 10, packed=15), b.linear(x, 7, 10, packed=15)
        b.graph.outputs = [b.gated(gate, up), b.linear(x, 6, 10, packed=15), b.linear(x, 5, 10, packed=15)]
        return b

    same(make, 2)


@pytest.mark.parametrize("make", [projections, swiglu])
def test_a_weight_in_parts(make):
    """A product whose weight exceeds a binding gets dispatches of its own, one per part."""
    sizes = (40, 8) if make is projections else 40
    same(lambda: make(2, 64, sizes, 32), None, max_binding_bytes=640)


def launched(plan: Plan, inputs: list[np.ndarray]) -> int:
    """Count the dispatches for these inputs."""
    return sum(0 not in d.grid for d in plan_at(plan, *sizes_of(inputs)).dispatches)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda m: projections(m, 64, (20, 12, 12), 32), lambda m: swiglu(m, 64, 21, 32)])
def test_live_rows(make):
    """A plan for at most 12 rows runs with fewer and with none."""
    b, gpu = make(12), device()
    join(b)
    plan = plan_of(b.graph, gpu.target, dynamic=True)
    (x,) = b.arrays
    counts = []
    for m in (12, 1, 8, 0, 3, 12):
        counts.append(launched(plan, [x[:m]]))
        c = make(12)
        fuse_elementwise(c.graph)
        c.arrays = [x]
        expected_rows, _ = run(c, ())
        for got, want in zip(run_plan(plan, [x[:m]], gpu), expected_rows, strict=True):
            close(got, want[:m], TOLERANCE[F32])
    products = len(b.graph.nodes[0].outs)
    assert counts == [products, 1, 1, 0, 1, products]


def labels(b: Builder, target: Target = MANY_BUFFERS) -> list[str]:
    plan: Plan = plan_of(b.graph, target)
    return [d.label for d in plan.dispatches]


LINEAR = "et_vk.linear_q4gsw.default"


def test_labels_name_the_calls_that_a_dispatch_serves() -> None:
    b = projections(1, 64, (8, 4, 4), 32)
    assert join(b) == ["fused(linear_q4gsw+linear_q4gsw+linear_q4gsw)"]
    assert b.graph.nodes[0].name == f"{LINEAR} #0, {LINEAR} #1, {LINEAR} #2"
    assert labels(b) == [f"{LINEAR} #0, {LINEAR} #1, {LINEAR} #2"]
    assert labels(b, Target()) == [f"{LINEAR} #0, {LINEAR} #1", f"{LINEAR} #2"]
    b = projections(9, 64, (8, 4, 4), 32)
    join(b)
    assert labels(b) == [f"{LINEAR} #0", f"{LINEAR} #1", f"{LINEAR} #2"]
    b = swiglu(1, 64, 8, 32)
    assert join(b) == ["fused(linear_q4gsw+linear_q4gsw+sigmoid+mul+mul)"]
    assert labels(b) == [f"{LINEAR} #0, {LINEAR} #1 and 3 after it"]


def test_a_joined_node_has_the_arguments_and_results_of_all() -> None:
    b = swiglu(1, 64, 8, 32)
    gate, _, *_, out = (n.outs[0] for n in b.graph.nodes)
    constants = [v for n in b.graph.nodes[:2] for v in n.args[1:3]]
    join(b)
    (only,) = b.graph.nodes
    assert only.outs == (gate, out)
    assert list(dict.fromkeys(only.values())) == [b.graph.inputs[0], *constants]
    assert [v for v in constants if takes_parts(only, v)] == constants[::2]


def test_a_joined_graph_can_be_printed_and_compared() -> None:
    """Its text contains all its members, so equal graphs have equal texts."""
    b, same, other = swiglu(1, 64, 8, 32), swiglu(1, 64, 8, 32), swiglu(1, 64, 8, 16)
    before = [repr(n) for n in b.graph.nodes]
    for builder in (b, same, other):
        join(builder)
    assert repr(b.graph) == repr(same.graph) != repr(other.graph)
    assert all(line in repr(b.graph) for line in before)
    (only,) = b.graph.nodes
    assert [n.op.name for n in only.members] == [LINEAR, "fused(linear_q4gsw+sigmoid+mul+mul)"]
    assert [n.op.name for n in only.members[1].members[:2]] == [LINEAR, "aten.sigmoid.default"]


def test_pairs_and_siblings_of_the_same_x() -> None:
    b = Builder()
    x = b.input(1, 64)
    query, gate, key, up = (b.linear(x, 8) for _ in range(4))
    b.graph.outputs = [b.gated(gate, up), query, key]
    assert join(b) == ["fused(linear_q4gsw+linear_q4gsw)", "fused(linear_q4gsw+linear_q4gsw+sigmoid+mul+mul)"]


def test_siblings_move_up_past_what_uses_the_first() -> None:
    b = Builder()
    x = b.input(1, 64)
    query = b.linear(x, 8)
    softmax = b.apply("aten._softmax.default", query, -1, False, shape=(1, 8))
    b.graph.outputs = [softmax, b.linear(x, 4)]
    assert join(b) == ["fused(linear_q4gsw+linear_q4gsw)", "aten._softmax.default"]


def test_what_is_far_away_or_too_much_stays_apart() -> None:
    b = Builder()
    x = b.input(1, 64)
    b.graph.outputs = [b.linear(x, 4) for _ in range(MAX_SIBLINGS + 2)]
    joined = ["linear_q4gsw"] * MAX_SIBLINGS
    assert join(b) == [f"fused({'+'.join(joined)})", "fused(linear_q4gsw+linear_q4gsw)"]
    b = Builder()
    x = b.input(1, 64)
    y = b.linear(x, 4)
    for _ in range(MAX_DISTANCE):
        y = b.apply("aten._softmax.default", y, -1, False, shape=(1, 4))
    b.graph.outputs = [y, b.linear(x, 4)]
    assert join(b) == [LINEAR, *["aten._softmax.default"] * MAX_DISTANCE, LINEAR]


def other_x(b: Builder, x: Tensor) -> None:
    b.linear(b.input(1, 64), 8)


def other_group(b: Builder, x: Tensor) -> None:
    b.linear(x, 8, 16)


def other_rows(b: Builder, x: Tensor) -> None:
    b.linear(x, 8, packed=40)


def other_operator(b: Builder, x: Tensor) -> None:
    b.bytes_linear(x, 8)


def weight_that_varies(b: Builder, x: Tensor) -> None:
    b.linear(x, 8)
    x, weight, *rest = b.graph.nodes[-1].args  # type: ignore[assignment]
    varying = Tensor("weight", U8, weight.max_shape, "input")  # type: ignore[union-attr]
    b.graph.inputs.append(varying)
    b.graph.nodes[-1].args = (x, varying, *rest)


def x_that_is_written(b: Builder, x: Tensor) -> None:
    b.graph.nodes.append(Node(REGISTRY["aten.sigmoid.default"], (x,), (Tensor("s", F32, x.shape),), "write", (x,)))
    b.linear(x, 8)


def product_that_computes_more(b: Builder, x: Tensor) -> None:
    y = b.linear(x, 8)
    b.apply("aten.sigmoid.default", y, shape=y.shape)


@pytest.mark.parametrize(
    "add",
    [
        other_x,
        other_group,
        other_rows,
        other_operator,
        weight_that_varies,
        x_that_is_written,
        product_that_computes_more,
    ],
)
def test_what_differs_stays_apart(add):
    b = Builder()
    x = b.input(1, 64)
    b.linear(x, 8)
    add(b, x)
    b.graph.outputs = [n.outs[0] for n in (b.graph.nodes[0], b.graph.nodes[-1])]
    fuse_elementwise(b.graph)
    before = list(b.graph.nodes)
    fuse_siblings(b.graph)
    assert b.graph.nodes == before


def test_a_first_result_that_others_use_is_stored() -> None:
    """The two products do not pair: the second one reads the stored result."""
    b = swiglu(1, 64, 8, 32)
    b.graph.outputs.append(b.graph.nodes[0].outs[0])
    assert join(b) == [LINEAR, "fused(linear_q4gsw+sigmoid+mul+mul)"]
    b = swiglu(1, 64, 8, 32)
    gate = b.graph.nodes[0].outs[0]
    b.graph.outputs.append(b.apply("aten._softmax.default", gate, -1, False, shape=(1, 8)))
    assert join(b) == [LINEAR, "fused(linear_q4gsw+sigmoid+mul+mul)", "aten._softmax.default"]
