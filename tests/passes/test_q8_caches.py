"""Caches in 8 bits: results as in float64 with caches that are rounded alike, and not as without rounding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.cases import compare, device, run_plan
from tests.graphs import Sketch, plan_of
from tests.passes.test_attention import CUSTOM, FEWER, PAIRS, SDPA, UPDATE, Layer, same
from tests.q8 import LARGE, attention, coarse, stored

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import BLOCK, DType
from ptegpu.errors import InvalidProgram
from ptegpu.gpu import SharedConstants
from ptegpu.kernels.attention import PAGE
from ptegpu.kernels.blocks import blocks_of
from ptegpu.ops.ragged import ATTEND
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import CLASSES
from ptegpu.runtime.runner import PlanRunner

F32, F16 = DType.F32, DType.F16
LONGEST, CONTEXT = 33, 300
CALLS = [(5, 0), (1, 5), (3, 6), (33, 9), (1, 127), (1, 299), (8, 292)]
BUSY = replace(CLASSES["discrete"], units=1)  # a few tiles keep it busy


@dataclass(frozen=True)
class Attending:
    """Attention with caches alone."""

    heads: int = 4
    shared: int = 2  # key heads
    dim: int = 32
    op: str = SDPA
    dtype: DType = F32
    empty: bool = False  # caches begin with zeros

    @property
    def weights(self) -> np.ndarray:
        """The magnitudes of elements of keys and values; queries have the inverse ones, as do results to compare."""
        columns = np.ones(self.shared * self.dim)
        columns[LARGE::BLOCK] = 127
        return columns.reshape(self.shared, self.dim)

    def check(
        self, calls: Sequence[tuple[int, int]] = CALLS, cache: str = "q8", tolerance: float = 1e-4, **options: Any
    ) -> list[Counter[str]]:
        """Compare results with float64; return the kernels of each call."""
        s, rng, sharing = Sketch(), np.random.default_rng(0), self.heads // self.shared
        q, k, v = (s.input(1, LONGEST, n, self.dim, dtype=self.dtype) for n in (self.heads, self.shared, self.shared))
        start, size = s.sym(), (1, CONTEXT, self.shared, self.dim)
        old = [np.zeros(size, np.float32) if self.empty else coarse(rng, *size) for _ in "kv"]
        keys, values = (s.state(*size, data=x.copy()) for x in old)
        if self.op == SDPA:
            y = s.tensor(SDPA, q, k, v, keys, values, start, 1, None, 0.0, True, None)
        else:
            s.node(UPDATE, k, keys, start)
            s.node(UPDATE, v, values, start)
            y = s.tensor(CUSTOM, q, keys, values, start, None, 0.0, True, None)
        gpu = device(**{n: options.pop(n) for n in list(options) if n in ("f16", "subgroups", "limits")})
        target = replace(gpu.target, **{"device_class": CLASSES["discrete"], "cache": cache, **options})
        names = [f"{x.name}[1]" for x in (q, k, v)]
        points = [dict.fromkeys(names, n) for n in sorted({n for n, _ in calls})]
        planner = Planner(s.returns(y), target, [True] * 4, points=points).cover()
        plan, kernels, exact, rounded = planner.plan(), [], old, [stored(x) for x in old]
        engine = PlanRunner(plan, gpu, SharedConstants(), None)  # type: ignore[arg-type]
        columns = np.repeat(self.weights, sharing, 0)
        try:
            for length, first in calls:
                query = (rng.uniform(-3, 3, (1, length, self.heads, self.dim)) / columns).astype(self.dtype.numpy)
                new = [coarse(rng, 1, length, *size[2:], dtype=self.dtype.numpy) for _ in "kv"]
                for place, wide, x in zip(rounded, exact, new, strict=True):
                    place[:, first : first + length], wide[:, first : first + length] = stored(x), x
                got = engine.run([query, *new, first], read=[0])[0] / columns
                want, other = (attention(query, *caches, first) / columns for caches in (rounded, exact))
                compare(got, want, tolerance, f"{length} at {first}")
                with pytest.raises(AssertionError):
                    compare(other, want, 5 * tolerance, "without rounding")
                at = plan_at(plan, [*((1, length, x.max_shape[2], self.dim) for x in (q, k, v)), first], lambda *_: 0)
                launched = (d for step in at.families[0].steps for d in step[0].dispatches)
                kernels.append(Counter(plan.kernels[d.kernel].name for d in launched))
        finally:
            engine.close()
        return kernels


@pytest.mark.parametrize(
    "layer",
    [
        Attending(),
        Attending(op=CUSTOM),
        Attending(dim=64, heads=8),
        Attending(dim=96, heads=2),
        Attending(shared=1, heads=3, empty=True),
    ],
    ids=str,
)
def test_a_step_writes_blocks_itself(layer: Attending) -> None:
    kernels = layer.check()
    assert all(k["attention_rows"] == 1 for k in kernels)
    assert kernels[1]["write_cache"] == (layer.op == CUSTOM) * 2  # of one row


@pytest.mark.parametrize("layer", [Attending(dim=16), Attending(dim=8, shared=4), Attending(dim=48, heads=2)], ids=str)
def test_blocks_of_several_heads(layer: Attending) -> None:
    assert layer.check(CALLS[:4])[1]["write_cache"] == 1


def test_elements_one_by_one() -> None:
    """Heads of six elements are no quads."""
    assert Attending(dim=6, shared=16, heads=16).check(CALLS[:4])[0]["attention_rows"] == 1


@pytest.mark.parametrize("layer", [Attending(), Attending(dim=16, heads=6)], ids=str)
def test_tiles(layer: Attending) -> None:
    kernels = layer.check([(33, 0), (20, 33), (33, 200)], device_class=BUSY)
    assert all(k["attention_tiles"] == 1 and k["write_cache"] == 1 for k in kernels)


@pytest.mark.parametrize("limits", [{"f16": False}, {"f16": False, "subgroups": False, "limits": "browser"}], ids=str)
@pytest.mark.parametrize("layer", [Attending(), Attending(dtype=F16)], ids=str)
def test_on_other_adapters(layer: Attending, limits: dict[str, Any]) -> None:
    layer.check(CALLS[:4], tolerance=1e-4 if layer.dtype is F32 else 5e-3, **limits)
    layer.check(CALLS[:4], tolerance=1e-4 if layer.dtype is F32 else 5e-3, device_class=CLASSES["software"], **limits)


@pytest.mark.parametrize("layer", [Layer(dim=32), Layer(dim=32, turned=PAIRS, cached=CUSTOM), Layer(dim=16)], ids=str)
def test_fused_with_neighbours(layer: Layer) -> None:
    """One dispatch rotates keys, writes them as blocks, and attends to them."""
    kernels = same(layer, FEWER[::2], cache="q8")
    assert kernels == {"attention_rows": 1, "linear_q4_gemv": 1} | (
        {} if layer.dim == 32 else {"write_cache": 1, "rope_halves": 1}
    )


def test_in_a_browser() -> None:
    limits = {"f16": False, "subgroups": False, "limits": "browser"}
    assert same(Layer(dim=32), FEWER[:4], cache="q8", **limits) == {"attention_rows": 1, "linear_q4_gemv": 1}


@pytest.mark.parametrize("sharing", [1, 3])
@pytest.mark.parametrize(("dim", "width"), [(32, 4), (16, 30)])
def test_pages(dim: int, width: int, sharing: int) -> None:
    """Rows of two sequences, in pages in any order."""
    s, rng, shared = Sketch(), np.random.default_rng(0), 2
    rows = np.array([(0, 40), (1, 3), (-1, 0), (0, 41), (1, width * PAGE - 1)], np.int32)
    tables = rng.permutation(2 * width).astype(np.int32).reshape(2, width)
    q, k, v = (s.input(1, len(rows), n, dim) for n in (shared * sharing, shared, shared))
    old = [coarse(rng, 2 * width, PAGE, shared, dim) for _ in "kv"]
    pages = [s.state(*x.shape, data=x.copy()) for x in old]
    operands = s.input(*rows.shape, dtype=DType.I32), s.input(*tables.shape, dtype=DType.I32)
    graph = s.returns(s.tensor(ATTEND, q, k, v, *pages, *operands, 0, None))
    columns = np.ones(shared * dim)
    columns[LARGE::BLOCK] = 127
    columns = columns.reshape(shared, dim)
    query = (rng.uniform(-3, 3, q.shape) / columns.repeat(sharing, 0)).astype(np.float32)
    new = [coarse(rng, *k.shape) for _ in "kv"]
    gpu = device()
    target = replace(gpu.target, cache="q8", device_class=CLASSES["discrete"])
    (got,) = run_plan(plan_of(graph, target)[0], [query, *new, rows, tables], gpu)
    flat = [stored(x).reshape(-1, shared, dim) for x in old]
    places = (tables[:, :, None] * PAGE + np.arange(PAGE)).reshape(2, -1)
    for k, (sequence, position) in enumerate(rows):
        for cache, x in zip(flat, new, strict=True):
            if sequence >= 0:
                cache[places[sequence, position]] = stored(x)[0, k]
    for k, (sequence, position) in enumerate(rows):
        if sequence >= 0:
            caches = [x[places[sequence]][None] for x in flat]
            want = attention(query[:, k : k + 1], *caches, position)[0, 0] / columns.repeat(sharing, 0)
            compare(got[0, k] / columns.repeat(sharing, 0), want, 1e-4, f"row {k}")


def test_a_program_has_no_such_type() -> None:
    s = Sketch()
    with pytest.raises(InvalidProgram, match=r"'cache' is .*, but must be float32 or float16$"):
        s.node(UPDATE, s.input(1, 2, 2, 16), s.state(1, 8, 2, 16, dtype=DType.I8), s.sym())


def test_small_and_large_values() -> None:
    x = np.array([[0.0] * 32, [1e-20] * 31 + [-2e-20], [1e-38] * 32, [1e30, -1e25] * 16], np.float32)
    blocks = blocks_of(x)
    assert (4, 9) == blocks.shape
    units, values = blocks[:, :1].view(np.float32), blocks[:, 1:].copy().view(np.uint8) - 128.0
    found = values / 256 * units
    assert not found[0].any() and not found[2].any()
    np.testing.assert_allclose(found[[1, 3]], stored(x)[[1, 3]], rtol=1e-6)


def test_a_wider_cache_is_not_rounded_so() -> None:
    """The check can fail: with a cache in f16, results are not those of 8 bits."""
    with pytest.raises(AssertionError):
        Attending().check(CALLS[:1], cache="f16")
