"""Decomposed attention: it becomes one node whose result agrees with float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.cases import device, planner_of, run_plan
from tests.families import hold, points
from tests.graphs import Sketch

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph, Tensor
from ptegpu.passes.dead import remove_dead
from ptegpu.passes.decomposed import fuse_decomposed
from ptegpu.passes.views import merge_views
from ptegpu.plan.target import CLASSES, Kind, Target

BOOL, F16, F32 = DType.BOOL, DType.F16, DType.F32
VIEW, PERMUTE, EXPAND = "aten.view_copy.default", "aten.permute_copy.default", "aten.expand_copy.default"
UNSQUEEZE = "aten.unsqueeze_copy.default"
B, H = 2, 3
LOW = -math.inf


@dataclass
class Built:
    """A graph, its inputs and its expected output."""

    graph: Graph
    arrays: list[np.ndarray]
    want: np.ndarray


def heads(s: Sketch, layout: str, lengths: tuple[int, int], d: int, dtype: DType) -> tuple[list[Tensor], list]:  # type: ignore[type-arg]
    """Return queries, keys and values as (B, H, length, d), and for each its input and how NumPy splits that."""
    tensors, sources = [], []
    rows, keys = lengths
    if layout == "packed":  # (B, S, 3 · H · d) through a permutation and selections
        x = s.input(B, rows, 3 * H * d, dtype=dtype)
        wide = s.tensor(PERMUTE, s.tensor(VIEW, x, (B, rows, 3, H, d)), (2, 0, 3, 1, 4))
        for k in range(3):
            tensors.append(s.tensor("aten.select_copy.int", wide, 0, k))
            sources.append((x, lambda a, k=k: a.reshape(B, rows, 3, H, d)[:, :, k].transpose(0, 2, 1, 3)))
        return tensors, sources
    for n in (rows, keys, keys):
        match layout:
            case "merged":  # (B · S, H · d), as a linear leaves it
                x = s.input(B * n, H * d, dtype=dtype)
                tensors.append(s.tensor(PERMUTE, s.tensor(VIEW, x, (B, n, H, d)), (0, 2, 1, 3)))
                sources.append((x, lambda a, n=n: a.reshape(B, n, H, d).transpose(0, 2, 1, 3)))
            case "length first":  # (S, B, H · d)
                x = s.input(n, B, H * d, dtype=dtype)
                moved = s.tensor(PERMUTE, s.tensor(VIEW, x, (n, B * H, d)), (1, 0, 2))
                tensors.append(s.tensor(VIEW, moved, (B, H, n, d)))
                sources.append((x, lambda a, n=n: a.reshape(n, B, H, d).transpose(1, 2, 0, 3)))
            case _:  # (B, H, S, d)
                tensors.append(s.input(B, H, n, d, dtype=dtype))
                sources.append((tensors[-1], lambda a: a))
    return tensors, sources


MASKS: dict[str, tuple[tuple[int | str, ...], bool]] = {  # shape with lengths by name, whether of bools
    "none": ((), False),
    "float": ((B, 1, 1, "t"), False),
    "of queries": ((1, H, "s", "t"), False),
    "of keys": (("t",), False),
    "bools": ((B, 1, 1, "t"), True),
    "bools, expanded": ((B, 1, 1, "t"), True),
    "bools that hide": ((B, 1, "s", "t"), True),
    "instead": ((B, 1, 1, "t"), True),
    "finite instead": ((B, 1, "s", "t"), True),
}


def build(
    layout: str = "merged",
    mask: str = "none",
    scale: str = "both",
    blank: bool = True,
    tail: str = "merged",
    lengths: tuple[int, int] = (5, 7),
    d: int = 8,
    dtype: DType = F32,
) -> Built:
    s, rng = Sketch(), np.random.default_rng(0)
    rows, keys = lengths
    (q, k, v), sources = heads(s, layout, lengths, d, dtype)
    kt = s.tensor(PERMUTE, k, (0, 1, 3, 2))
    factor = 0.5
    if scale == "both":
        q, kt = s.tensor("aten.mul.Scalar", q, 0.5), s.tensor("aten.mul.Scalar", kt, 0.25)
        factor = 0.125
    scores = s.tensor("aten.bmm.default", s.tensor(VIEW, q, (B * H, rows, d)), s.tensor(VIEW, kt, (B * H, d, keys)))
    scores = s.tensor(VIEW, scores, (B, H, rows, keys))
    if scale == "scores":
        scores = s.tensor("aten.div.Tensor", scores, s.constant(np.array(2.0, dtype.numpy)))
    arrays: dict[Tensor, np.ndarray] = {}
    shape, bools = MASKS[mask]
    added: Callable[[np.ndarray], np.ndarray] = lambda x: x
    if shape:
        sizes = tuple({"s": rows, "t": keys}.get(n, n) for n in shape)  # type: ignore[call-overload]
        mask_input = s.input(*sizes, dtype=BOOL if bools else dtype)
        values = rng.uniform(size=sizes) < 0.6 if bools else rng.normal(size=sizes)
        values.reshape(-1, keys)[0] = (mask in ("bools that hide", "instead", "finite instead")) if bools else LOW
        if mask == "of keys":
            values[-1] = 1.0
        arrays[mask_input] = values.astype(mask_input.dtype.numpy)
        low, zero = (s.constant(np.array(x, dtype.numpy)) for x in (LOW, 0.0))
        if mask in ("bools", "bools, expanded"):
            where = s.tensor(EXPAND, mask_input, (B, 1, rows, keys), False) if "expanded" in mask else mask_input
            scores = s.tensor("aten.add.Tensor", scores, s.tensor("aten.where.self", where, zero, low, dtype=dtype))
            added = lambda x: np.where(values, x, LOW)
        elif mask == "bools that hide":
            chosen = s.tensor("aten.where.self", mask_input, low, zero, dtype=dtype)
            scores = s.tensor("aten.add.Tensor", chosen, scores)
            added = lambda x: np.where(values, LOW, x)
        elif mask == "instead":
            scores = s.tensor("aten.where.self", mask_input, low, scores, dtype=dtype)
            added = lambda x: np.where(values, LOW, x)
        elif mask == "finite instead":
            scores = s.tensor("aten.masked_fill.Scalar", scores, mask_input, -4.0)
            added = lambda x: np.where(values, -4.0, x)
        else:
            scores = s.tensor("aten.add.Tensor", scores, mask_input, 1)
            added = lambda x: x + arrays[mask_input].astype(np.float64)
    soft = s.tensor("aten._softmax.default", scores, -1, False)
    if blank:
        real = s.tensor("aten.logical_not.default", s.tensor("aten.eq.Scalar", scores, LOW, dtype=BOOL))
        none = s.tensor("aten.logical_not.default", s.tensor("aten.any.dim", real, -1, True))
        soft = s.tensor("aten.where.self", none, s.tensor("aten.full_like.default", soft, 0), soft, dtype=dtype)
    y = s.tensor("aten.bmm.default", s.tensor(VIEW, soft, (B * H, rows, keys)), s.tensor(VIEW, v, (B * H, keys, d)))
    y = s.tensor(VIEW, y, (B, H, rows, d))
    if tail == "merged":
        y = s.tensor(PERMUTE, s.tensor(PERMUTE, y, (2, 0, 1, 3)), (1, 0, 2, 3))
        y = s.tensor(VIEW, y, (B, rows, H * d))
    for x, _ in sources:
        arrays.setdefault(x, rng.normal(size=x.shape).astype(dtype.numpy))
    queries, key_rows, value_rows = (split(arrays[x].astype(np.float64)) for x, split in sources)
    with np.errstate(invalid="ignore"):
        logits = added(factor * queries @ key_rows.transpose(0, 1, 3, 2))
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    weights = np.where((logits == LOW).all(-1, keepdims=True), 0.0, weights) if blank else weights
    want = weights @ value_rows
    if tail == "merged":
        want = want.transpose(0, 2, 1, 3).reshape(B, rows, H * d)
    graph = s.returns(y)
    return Built(graph, [arrays[x] for x in graph.inputs], want)  # type: ignore[index]


def check(b: Built, nodes: int = 1, tolerance: float = 2e-6, kind: Kind = "software") -> None:
    """Check the fused graph: `nodes` nodes, attention last, and the expected result."""
    merge_views(b.graph)
    remove_dead(b.graph)
    fuse_decomposed(b.graph)
    assert nodes == len(b.graph.nodes), b.graph
    assert "fused(attention)" == b.graph.nodes[-1].op.name
    gpu = device()
    plan = planner_of(b.graph, replace(gpu.target, device_class=CLASSES[kind])).cover().plan()
    (got,) = run_plan(plan, b.arrays, gpu)
    np.testing.assert_allclose(got, b.want, rtol=0, atol=tolerance * np.nanmax(np.abs(b.want)))


@pytest.mark.parametrize("layout", ["merged", "packed", "length first", "heads first"])
@pytest.mark.parametrize("tail", ["merged", "plain"])
@pytest.mark.parametrize("d", [8, 6])
def test_layouts(layout, tail, d):
    check(build(layout, tail=tail, d=d, lengths=(7, 7)))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("blank", [True, False])
@pytest.mark.parametrize("lengths", [(5, 7), (20, 37)], ids=str)
def test_masks(mask, blank, lengths):
    b = build(mask=mask, blank=blank, lengths=lengths)
    if mask not in ("none", "finite instead", "of queries"):
        assert (np.isnan(b.want).any() if not blank else (b.want == 0).any()) or mask == "of keys"
    check(b)


@pytest.mark.parametrize("scale", ["both", "scores"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 300), (65, 33)], ids=str)
@pytest.mark.parametrize("kind", ["software", "discrete"])
def test_scales_and_lengths(scale, lengths, kind):
    check(build(mask="float", scale=scale, lengths=lengths), kind=kind)


@pytest.mark.parametrize("mask", ["bools, expanded", "float"])
def test_halves(mask):
    check(build("packed", mask, dtype=F16, lengths=(9, 9)), tolerance=4e-3)


def changed(change: Callable[[Graph], None]) -> list[str]:
    b = build("heads first", tail="plain")
    change(b.graph)
    fuse_decomposed(b.graph)
    return [n.op.name for n in b.graph.nodes]


def test_weights_that_others_need_stay():
    def output(graph: Graph) -> None:
        graph.outputs.append(next(n.outs[0] for n in graph.nodes if n.op.name == "aten._softmax.default"))

    assert "fused(attention)" in changed(lambda graph: None)
    assert "fused(attention)" not in changed(output)


@pytest.mark.parametrize(
    ("op", "number", "value"),
    [
        ("aten._softmax.default", 1, 2),  # along queries
        ("aten.eq.Scalar", 1, 0.0),  # zeros where scores are 0
        ("aten.full_like.default", 1, 1),  # ones for rows that see nothing
    ],
)
def test_what_is_almost_attention_stays(op, number, value):
    def change(graph: Graph) -> None:
        node = next(n for n in graph.nodes if n.op.name == op)
        node.args = (*node.args[:number], value, *node.args[number + 1 :])

    assert "fused(attention)" not in changed(change)


def dynamic() -> Graph:
    """Build attention over (B, S, H · 8) with a mask (B, S), whose views take the dynamic sizes as symbolic ints."""
    s = Sketch()
    x, mask = s.input(3, 20, 16), s.input(3, 20, dtype=BOOL)
    b, n = s.node("sym_size.int", x, 0), s.node("sym_size.int", x, 1)
    x = s.tensor("aten.mul.Tensor", x, s.constant(np.ones(16, np.float32)))
    outer = s.node("mul", b, 2)
    for sym, value in ((b, 3), (n, 20), (outer, 6)):
        sym.value = value  # type: ignore[union-attr]
    split = s.tensor(PERMUTE, s.tensor(VIEW, x, (b, n, 2, 8)), (0, 2, 1, 3))
    kt = s.tensor(PERMUTE, split, (0, 1, 3, 2))
    scores = s.tensor("aten.bmm.default", s.tensor(VIEW, split, (outer, n, 8)), s.tensor(VIEW, kt, (outer, 8, n)))
    scores = s.tensor(VIEW, scores, (b, 2, n, n))
    low, zero = (s.constant(np.array(v, np.float32)) for v in (LOW, 0.0))
    wide = s.tensor(EXPAND, s.tensor(UNSQUEEZE, s.tensor(UNSQUEEZE, mask, 1), 1), (b, 1, n, n), False)
    scores = s.tensor("aten.add.Tensor", scores, s.tensor("aten.where.self", wide, zero, low, dtype=F32))
    soft = s.tensor("aten._softmax.default", scores, -1, False)
    y = s.tensor("aten.bmm.default", s.tensor(VIEW, soft, (outer, n, n)), s.tensor(VIEW, split, (outer, n, 8)))
    y = s.tensor(PERMUTE, s.tensor(VIEW, y, (b, 2, n, 8)), (0, 2, 1, 3))
    graph = s.returns(s.tensor(VIEW, y, (b, n, 16)))
    fuse_decomposed(graph)
    assert "fused(attention)" == graph.nodes[-1].op.name
    return graph


def test_plans_are_what_each_size_would_get():
    """Sizes of 1 are left out: their strides are never used and may differ."""
    for target in (Target(), replace(Target(), device_class=CLASSES["software"])):
        plans = [Planner(dynamic(), target, [True, True], plain=plain) for plain in (False, True)]
        sizes = [p for p in points(plans[0].cover()) if 1 not in p.values()]
        assert hold(plans[0], plans[1], sizes) > 10


def test_every_size_is_one_dispatch_and_right():
    graph, gpu = dynamic(), device()
    plan = Planner(graph, gpu.target, [True, True]).cover().plan()
    (family,) = [f for f in plan.families if not f.refusal]
    counts = [len(c.dispatches) for c in family.steps[-1]]
    assert {0, 1} == set(counts) and len(counts) <= 6, counts
    rng = np.random.default_rng(1)
    for b, n in itertools.product((1, 2, 3), (1, 2, 16, 17, 20)):
        x = rng.normal(size=(b, n, 16)).astype(np.float32)
        visible = rng.uniform(size=(b, n)) < 0.7
        visible[:, 0] = True
        (got,) = run_plan(plan, [x, visible], gpu)
        q = x.astype(np.float64).reshape(b, n, 2, 8).transpose(0, 2, 1, 3)
        weights = np.exp(q @ q.transpose(0, 1, 3, 2)) * visible[:, None, None]
        want = (weights / weights.sum(-1, keepdims=True) @ q).transpose(0, 2, 1, 3).reshape(b, n, 16)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("shared", [False, True])
def test_linears_of_the_same_x_are_one(shared):
    """A linear whose result is also an output stays separate."""
    s, rng, n = Sketch(), np.random.default_rng(2), 9
    x = s.input(B * n, 16)
    array = rng.normal(size=x.shape).astype(np.float32)
    projections, expected = [], []
    for bias in (True, False, True):
        weight, added = rng.normal(size=(24, 16)).astype(np.float32), rng.normal(size=24).astype(np.float32)
        projections.append(s.tensor("aten.linear.default", x, s.constant(weight), s.constant(added) if bias else None))
        y = array.astype(np.float64) @ weight.T + (added if bias else 0)
        expected.append(y.reshape(B, n, H, 8).transpose(0, 2, 1, 3))
    q, k, v = (s.tensor(PERMUTE, s.tensor(VIEW, y, (B, n, H, 8)), (0, 2, 1, 3)) for y in projections)
    kt = s.tensor(VIEW, s.tensor(PERMUTE, k, (0, 1, 3, 2)), (B * H, 8, n))
    scores = s.tensor("aten.bmm.default", s.tensor(VIEW, q, (B * H, n, 8)), kt)
    soft = s.tensor("aten._softmax.default", s.tensor(VIEW, scores, (B, H, n, n)), -1, False)
    y = s.tensor("aten.bmm.default", s.tensor(VIEW, soft, (B * H, n, n)), s.tensor(VIEW, v, (B * H, n, 8)))
    graph = s.returns(s.tensor(VIEW, y, (B, H, n, 8)), *([projections[0]] if shared else []))
    fuse_decomposed(graph)
    linears = ["aten.linear.default"] * (2 if shared else 1)
    assert [*linears, "fused(attention)"] == [n.op.name for n in graph.nodes]
    got = run_plan(planner_of(graph, device().target).cover().plan(), [array], device())[0]
    queries, keys, values = expected
    weights = np.exp(
        queries @ keys.transpose(0, 1, 3, 2) - (queries @ keys.transpose(0, 1, 3, 2)).max(-1, keepdims=True)
    )
    want = weights / weights.sum(-1, keepdims=True) @ values
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_values_that_are_scaled_with_queries_stay_scaled():
    """Queries and values are the same tensor: the scale may move into the scores only for queries."""
    s, n = Sketch(), 5
    x, key = s.input(B * H, n, 8), s.input(B * H, n, 8)
    both = s.tensor("aten.mul.Scalar", x, 0.5)
    scores = s.tensor("aten.bmm.default", both, s.tensor(PERMUTE, key, (0, 2, 1)))
    graph = s.returns(s.tensor("aten.bmm.default", s.tensor("aten._softmax.default", scores, -1, False), both))
    fuse_decomposed(graph)
    arrays = [np.random.default_rng(k).normal(size=x.shape).astype(np.float32) for k in range(2)]
    (got,) = run_plan(planner_of(graph, device().target).cover().plan(), arrays, device())
    half, other = 0.5 * arrays[0].astype(np.float64), arrays[1].astype(np.float64)
    weights = np.exp(half @ other.transpose(0, 2, 1))
    want = weights / weights.sum(-1, keepdims=True) @ half
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("op", ["et_vk.sdpa.default", "aten.scaled_dot_product_attention.default"])
@pytest.mark.parametrize("sizes", [(3, 3, 7, 7), (4, 2, 20, 33)], ids=str)
def test_operators_of_attention_read_through_strides(op, sizes):
    """Heads share keys, one boolean mask covers all heads, and a permutation after attention merges the heads."""
    s, rng = Sketch(), np.random.default_rng(3)
    heads, shared, rows, keys = sizes
    q, k, v = (s.input(B, n, h * 8) for h, n in ((heads, rows), (shared, keys), (shared, keys)))
    mask = s.input(B, 1, 1, keys, dtype=BOOL)
    split = [s.tensor(PERMUTE, s.tensor(VIEW, x, (B, x.shape[1], -1, 8)), (0, 2, 1, 3)) for x in (q, k, v)]
    y = s.tensor(op, *split, mask)
    graph = s.returns(s.tensor(VIEW, s.tensor(PERMUTE, y, (0, 2, 1, 3)), (B, rows, heads * 8)))
    fuse_decomposed(graph)
    assert ["fused(attention)"] == [n.op.name for n in graph.nodes]
    arrays = [rng.normal(size=x.shape).astype(np.float32) for x in (q, k, v)]
    visible = rng.uniform(size=mask.shape) < 0.7
    visible[..., 0] = True
    (got,) = run_plan(planner_of(graph, device().target).cover().plan(), [*arrays, visible], device())
    queries, key_rows, values = (
        a.astype(np.float64).reshape(B, a.shape[1], -1, 8).transpose(0, 2, 1, 3) for a in arrays
    )
    key_rows, values = (np.repeat(x, heads // shared, 1) for x in (key_rows, values))
    weights = np.exp(queries @ key_rows.transpose(0, 1, 3, 2) / math.sqrt(8)) * visible
    want = (weights / weights.sum(-1, keepdims=True) @ values).transpose(0, 2, 1, 3).reshape(B, rows, heads * 8)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_an_operator_of_attention_that_needs_no_strides_stays():
    s = Sketch()
    graph = s.returns(s.tensor("et_vk.sdpa.default", *(s.input(B, H, 5, 8) for _ in range(3))))
    fuse_decomposed(graph)
    assert ["et_vk.sdpa.default"] == [n.op.name for n in graph.nodes]
