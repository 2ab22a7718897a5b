"""Attention fused with its neighbours: one node computes the same as separate ones, at every position and length."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.cases import device
from tests.graphs import Sketch

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.gpu import SharedConstants
from ptegpu.graph.graph import Graph, Tensor
from ptegpu.kernels.gemv import Gemv
from ptegpu.ops import packed_gemv
from ptegpu.passes.attention import fuse_attention
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import CLASSES
from ptegpu.runtime.runner import PlanRunner

F32, F16 = DType.F32, DType.F16
SDPA, CUSTOM, UPDATE = "sdpa_with_kv_cache.default", "custom_sdpa.default", "update_cache.default"
HALVES, PAIRS = "et_vk.apply_rotary_emb_hf.default", "et_vk.apply_rotary_emb.default"
VIEW, LINEAR = "aten.view_copy.default", "et_vk.linear_q4gsw.default"
LONGEST, CONTEXT = 33, 300  # the context is split into three parts
CALLS = [(5, 0), (1, 5), (1, 6), (2, 7), (1, 9), (33, 10), (1, 127), (1, 128), (3, 254), (1, 257), (1, 299), (8, 292)]
FEWER = [(2 if length == 3 else length, start) for length, start in CALLS]  # kernels for three rows compile slowly


@dataclass(frozen=True)
class Layer:
    """A decoder layer's attention, from its projections to its output."""

    heads: int = 4
    shared: int = 2  # key heads
    dim: int = 16
    turned: str | None = HALVES
    width: int | None = None  # of the tables
    cached: str = SDPA
    columns: int = 24  # of the product; 0 for none
    residual: bool = True
    cache: DType = F32
    dtype: DType = F32
    mask: bool = False
    causal: bool = True

    def graph(self) -> tuple[Graph, dict[str, Tensor]]:
        s, rng = Sketch(), np.random.default_rng(0)
        h, g, d = self.heads, self.shared, self.dim
        q, k, v = (s.input(1, LONGEST, n, d, dtype=self.dtype) for n in (h, g, g))
        start = s.sym()
        tensors: dict[str, Tensor] = {"q": q, "k": k, "v": v}
        if self.turned == HALVES:
            tables = [s.constant(rng.uniform(-1, 1, (CONTEXT, self.width or d)).astype(np.float32)) for _ in "cs"]
            q, k = both(s, HALVES, q, k, *tables, start)
        elif self.turned == PAIRS:
            tables = [s.input(LONGEST, d // 2) for _ in "cs"]
            q, k = both(s, PAIRS, q, k, *tables)
        tensors |= {"turned q": q, "turned k": k}
        old = [rng.uniform(-1, 1, (1, CONTEXT, g, d)).astype(self.cache.numpy) for _ in "kv"]
        keys, values = (s.state(*x.shape, data=x, dtype=self.cache) for x in old)
        tensors |= {"keys": keys, "values": values}
        mask = s.input(LONGEST, CONTEXT) if self.mask else None
        rest = (mask, 0.0, self.causal, None)
        if self.cached == SDPA:
            y = s.tensor(SDPA, q, k, v, keys, values, start, 1, *rest)
        else:
            s.node(UPDATE, k, keys, start)
            s.node(UPDATE, v, values, start)
            y = s.tensor(CUSTOM, q, keys, values, start, *rest)
        tensors["y"] = y
        if self.columns:
            y = s.tensor(VIEW, y, (1, -1, h * d))
            tensors["viewed"] = y
            weight = s.constant(rng.integers(0, 256, (self.columns, h * d // 2)).astype(np.uint8))
            scales = s.constant(rng.uniform(-0.1, 0.1, (h * d // 16, self.columns)).astype(np.float32))
            y = s.tensor(LINEAR, y, weight, scales, 16, None)
            if self.residual:
                y = s.tensor("aten.add.Tensor", s.input(1, LONGEST, self.columns, dtype=self.dtype), y, 1)
        tensors["out"] = y
        return s.returns(y), tensors


def both(s: Sketch, op: str, *args: Any) -> tuple[Tensor, Tensor]:
    """Add a rotary embedding and return its two results."""
    s.node(op, *args, dtype=(args[0].dtype, args[1].dtype))
    first, second = s.graph.nodes[-1].outs
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    return first, second


class Run:
    """A graph that runs on the adapter with the plans of a large GPU."""

    def __init__(self, graph: Graph, **options: Any) -> None:
        limits = {k: options.pop(k) for k in list(options) if k not in ("f16", "subgroups", "limits")}
        gpu = device(**options)
        self.graph = graph
        target = replace(gpu.target, device_class=CLASSES["discrete"], **limits)
        grow = [
            f"{v.name}[{d}]" for v in graph.inputs for d, n in enumerate(getattr(v, "max_shape", ())) if n == LONGEST
        ]
        points = [dict.fromkeys(grow, n) for n in sorted({n for n, _ in CALLS})]
        self.planner = Planner(graph, target, [True] * len(graph.inputs), points=points).cover()
        self.engine = PlanRunner(self.planner.plan(), gpu, SharedConstants(), None)  # type: ignore[arg-type]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def shapes(self, length: int, start: int) -> list[Any]:
        live = {LONGEST: length}
        inputs = self.graph.inputs
        return [tuple(live.get(n, n) for n in v.max_shape) if isinstance(v, Tensor) else start for v in inputs]

    def kernels(self, length: int) -> Counter[str]:
        plan = plan_at(self.planner.plan(), self.shapes(length, 0), lambda *_: 0)
        launched = [d for step in plan.families[0].steps for d in step[0].dispatches]
        return Counter(plan.kernels[d.kernel].name for d in launched)

    def __call__(self, length: int, start: int) -> np.ndarray:
        rng = np.random.default_rng(length * 1000 + start)
        arrays = []
        for v, shape in zip(self.graph.inputs, self.shapes(length, start), strict=True):
            dtype = v.dtype.numpy if isinstance(v, Tensor) else None
            arrays.append(rng.uniform(-1, 1, shape).astype(dtype) if dtype else shape)
        return self.engine.run(arrays, read=[0])[0]  # type: ignore[no-any-return]


def joined(layer: Layer) -> Graph:
    graph, _ = layer.graph()
    fuse_elementwise(graph)
    fuse_attention(graph)
    return graph


@pytest.fixture(autouse=True)
def staged(monkeypatch):
    """Let products of one row read it from workgroup memory."""
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(Gemv(rows=2, lanes=32, slots=4, staged=True)),))


def same(layer: Layer, calls: list[tuple[int, int]] = CALLS, **options: Any) -> Counter[str]:
    """Check that the pass changes no result of the calls; return the kernels that a call of one row launches."""
    apart, _ = layer.graph()
    with Run(apart, **options) as a, Run(joined(layer), **options) as b:
        for length, start in calls:
            want, got = a(length, start), b(length, start)
            assert np.isfinite(want).all()
            tolerance = {F32: 2e-5, F16: 4e-3}[layer.dtype] * np.abs(want).max()
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance, err_msg=f"{length} at {start}")
        return b.kernels(1)


LAYERS = [
    Layer(),
    Layer(cached=CUSTOM),
    Layer(turned=PAIRS),
    Layer(turned=PAIRS, cached=CUSTOM, residual=False),
    Layer(turned=None),
    Layer(turned=None, cached=CUSTOM),
    Layer(heads=8, shared=2, dim=64),
    Layer(heads=4, shared=4, dim=8),
    Layer(heads=2, shared=1, dim=80, width=64),  # only a part of each head is rotated
    Layer(columns=0),
    Layer(causal=False),
]


@pytest.mark.parametrize(
    "layer", [*LAYERS[:3], *(pytest.param(layer, marks=pytest.mark.slow) for layer in LAYERS[3:])], ids=str
)
def test_a_step_is_one_dispatch_and_the_product(layer):
    calls = CALLS if layer in LAYERS[:3] else FEWER
    want = {"attention_rows": 1, "linear_q4_gemv": 1} if layer.columns else {"attention_rows": 1, "attention_merge": 1}
    assert same(layer, calls) == want


def test_in_a_browser():
    assert same(Layer(), f16=False, subgroups=False, limits="browser") == {"attention_rows": 1, "linear_q4_gemv": 1}


HALVED = [Layer(cache=F16), Layer(cache=F16, cached=CUSTOM), Layer(dtype=F16, cache=F16), Layer(dtype=F16)]


@pytest.mark.slow
@pytest.mark.parametrize("layer", HALVED, ids=str)
@pytest.mark.parametrize("f16", [True, False])
def test_halves(layer, f16):
    want = {"attention_rows": 1, "linear_q4_gemv": 1}
    assert same(layer, FEWER[::2], f16=f16) == (want if f16 or layer.dtype is F32 else {**want, "cast": 1})


def test_what_a_kernel_cannot_take_in():
    """Nodes stay separate: tables whose halves are not whole quads, a mask as ninth binding, a limit of 7 bindings."""
    assert same(Layer(width=12), CALLS[:4])["rope_halves"] == 1
    masked = same(Layer(mask=True), CALLS[:4])
    assert masked["rope_halves"] == 1 and masked["write_cache"] == 0
    assert same(Layer(mask=True, causal=False), CALLS[:4])["write_cache"] == 1
    assert same(Layer(), CALLS[:4], max_storage_buffers=7)["rope_halves"] == 1


@pytest.mark.slow
def test_who_merges(monkeypatch):
    """Attention merges its parts itself if rows are not staged or there are too many parts."""
    monkeypatch.setattr(packed_gemv, "MOST_PARTS", 2)
    assert same(Layer(), FEWER[-6:])["attention_merge"] == 1
    monkeypatch.setattr(packed_gemv, "MOST_PARTS", 3)
    assert same(Layer(), FEWER[-6:])["attention_merge"] == 0
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(Gemv(rows=2, lanes=32)),))
    assert same(Layer(), FEWER[-6:])["attention_merge"] == 1


def test_two_rows_of_the_product_are_one_of_heads():
    """A product of rows that are not all heads of a query merges nothing."""
    layer = Layer(columns=0)
    s, rng = Sketch(), np.random.default_rng(0)
    s.graph, tensors = layer.graph()
    y = s.tensor(VIEW, tensors["y"], (-1, 2, 32))
    weight = s.constant(rng.integers(0, 256, (24, 16)).astype(np.uint8))
    y = s.tensor(LINEAR, y, weight, s.constant(rng.uniform(-0.1, 0.1, (2, 24)).astype(np.float32)), 16, None)
    s.graph.outputs = [y]
    fuse_attention(s.graph)
    with Run(s.graph) as run:
        assert run.kernels(1) == {"attention_rows": 1, "attention_merge": 1, "linear_q4_gemv": 1}


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes if n.op.sym is None]


JOINED = "fused(apply_rotary_emb_hf+sdpa_with_kv_cache+view_copy+linear_q4gsw+add)"


def test_what_becomes_one_node():
    assert [JOINED] == names(joined(Layer()))
    chain = "apply_rotary_emb_hf+update_cache+update_cache+custom_sdpa+view_copy+linear_q4gsw+add"
    assert [f"fused({chain})"] == names(joined(Layer(cached=CUSTOM)))


@pytest.mark.parametrize("name", ["turned q", "turned k"])
def test_what_is_turned_for_others_too_stays(name):
    graph, tensors = Layer(columns=0).graph()
    s = Sketch()
    s.graph = graph
    graph.outputs.append(s.tensor("aten.neg.default", tensors[name]))
    fuse_attention(graph)
    assert "et_vk.apply_rotary_emb_hf.default" in names(graph)


@pytest.mark.parametrize("name", ["turned q", "y", "viewed"])
def test_outputs_stay(name):
    graph, tensors = Layer().graph()
    graph.outputs.append(tensors[name])
    fuse_attention(graph)
    assert len(names(graph)) > 1
    made_by = {o for n in graph.nodes for o in n.outs}
    assert tensors[name] in made_by


def test_a_cache_that_is_read_between_is_written_before():
    s = Sketch()
    s.graph, tensors = Layer(columns=0, cached=CUSTOM).graph()
    attention = s.graph.nodes.pop()
    s.graph.outputs.append(s.tensor("aten.clone.default", tensors["keys"]))
    s.graph.nodes.append(attention)
    fuse_attention(s.graph)
    assert "update_cache.default" in names(s.graph)


def test_positions_that_differ():
    s = Sketch()
    s.graph, _ = Layer(columns=0, cached=CUSTOM, turned=None).graph()
    attention = s.graph.nodes.pop()
    other = s.sym()
    s.graph.nodes.append(replace(attention, args=(*attention.args[:3], other, *attention.args[4:])))
    fuse_attention(s.graph)
    assert 3 == len(names(s.graph))


def test_indices_are_checked_as_before():
    """The indices into the tables and into the cache have the same bounds."""
    plans = []
    for graph in (Layer().graph()[0], joined(Layer())):
        with Run(graph) as run:
            plans.append(run.planner.plan())
    separate, fused = ({(b.low, b.end, b.text) for f in p.families for b in f.bounds} for p in plans)
    assert len(separate) == len(fused) > 0
