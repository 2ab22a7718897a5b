"""Attention over pages fused with its neighbours: a step of single rows is one dispatch, with the same results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cases import device
from tests.graphs import Sketch
from tests.passes.test_attention import LINEAR, VIEW, both

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.gpu import SharedConstants
from ptegpu.graph.graph import Graph, Tensor
from ptegpu.kernels.attention import PAGE
from ptegpu.kernels.gemv import Gemv
from ptegpu.ops import packed_gemv
from ptegpu.ops.ragged import ATTEND, ROTARY_ROWS
from ptegpu.passes.attention import fuse_attention
from ptegpu.passes.caches import narrow_caches
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import CLASSES
from ptegpu.runtime.runner import PlanRunner

LONGEST, SEQUENCES, WIDTH, PAGES = 9, 9, 24, 9 * 24
HEADS, SHARED, DIM, COLUMNS = 4, 2, 32, 24
RUNS = [  # rows: (sequence, position)
    [(0, 0)],
    [(0, 1)],
    [(3, 130)],
    [(3, 131), (0, 2)],
    [(5, WIDTH * PAGE - 1)],
    [(4, 15), (2, 16), (0, 3), (1, 127), (7, 128), (8, 255), (6, 256), (3, 132)],
    [(3, 133), (0, 4), (2, 17), (4, 16), (1, 128), (7, 129), (8, 256), (6, 257), (5, 300)],
]


def graph(fused: bool, cache: DType = DType.F32) -> Graph:
    s, rng = Sketch(), np.random.default_rng(0)
    q, k, v = (s.input(1, LONGEST, n, DIM) for n in (HEADS, SHARED, SHARED))
    rows, tables = s.input(LONGEST, 2, dtype=DType.I32), s.input(SEQUENCES, WIDTH, dtype=DType.I32)
    single = s.sym()
    angles = [s.constant(rng.uniform(-1, 1, (WIDTH * PAGE, DIM)).astype(np.float32)) for _ in "cs"]
    q, k = both(s, ROTARY_ROWS, q, k, *angles, rows)
    old = [rng.uniform(-1, 1, (PAGES, PAGE, SHARED, DIM)).astype(np.float32) for _ in "kv"]
    keys, values = (s.state(*x.shape, data=x) for x in old)
    y = s.tensor(VIEW, s.tensor(ATTEND, q, k, v, keys, values, rows, tables, single, None), (1, -1, HEADS * DIM))
    weight = s.constant(rng.integers(0, 256, (COLUMNS, HEADS * DIM // 2)).astype(np.uint8))
    scales = s.constant(rng.uniform(-0.1, 0.1, (HEADS * DIM // 16, COLUMNS)).astype(np.float32))
    result = s.returns(s.tensor(LINEAR, y, weight, scales, 16, None))
    if fused:
        fuse_attention(result)
    if cache is not DType.F32:
        assert 2 == narrow_caches(result, cache)
    return result


class Run:
    """A graph that runs on the adapter with the plans of a large GPU."""

    def __init__(self, graph: Graph, **limits: Any) -> None:
        gpu = device()
        self.graph, self.tables = graph, np.random.default_rng(1).permutation(PAGES).reshape(SEQUENCES, WIDTH)
        sizes = {f"{v.name}[{0 if v.max_shape[0] == LONGEST else 1}]": v for v in graph.inputs[:4]}  # type: ignore[union-attr]
        points = [
            dict.fromkeys(sizes, n) | {graph.inputs[5].name: one} for n in range(1, LONGEST + 1) for one in (0, 1)
        ]
        target = replace(gpu.target, device_class=CLASSES["discrete"], **limits)
        self.planner = Planner(graph, target, [k < 4 for k in range(len(graph.inputs))], points=points).cover()
        self.engine = PlanRunner(self.planner.plan(), gpu, SharedConstants(), None)  # type: ignore[arg-type]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def kernels(self, count: int, single: int) -> Counter[str]:
        named: dict[int, Any] = {LONGEST: count}
        shapes = [
            tuple(named.get(n, n) for n in v.max_shape) if isinstance(v, Tensor) else single for v in self.graph.inputs
        ]
        shapes[4] = self.tables.shape
        plan = plan_at(self.planner.plan(), shapes, lambda *_: 0)
        return Counter(plan.kernels[d.kernel].name for (choice,) in plan.families[0].steps for d in choice.dispatches)

    def __call__(self, rows: list[tuple[int, int]], single: int) -> np.ndarray:
        rng = np.random.default_rng(rows[0][1])
        new = [rng.uniform(-1, 1, (1, len(rows), n, DIM)).astype(np.float32) for n in (HEADS, SHARED, SHARED)]
        arrays = [*new, np.array(rows, np.int32), self.tables.astype(np.int32), single]
        return self.engine.run(arrays, read=[0])[0]  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def staged(monkeypatch):
    """Let products of any rows read them from workgroup memory."""
    monkeypatch.setattr(packed_gemv, "GEMVS", (packed_gemv.GemvChoice(Gemv(rows=2, lanes=32, slots=4, staged=True)),))


@pytest.mark.parametrize("cache", [DType.F32, DType.F16, DType.Q8], ids=str)
def test_single_rows(cache: DType) -> None:
    with Run(graph(False, cache)) as apart, Run(graph(True, cache)) as joined:
        for rows in RUNS:
            want = apart(rows, 0)
            assert np.isfinite(want).all()
            np.testing.assert_allclose(joined(rows, 1), want, rtol=0, atol=2e-5 * np.abs(want).max(), err_msg=str(rows))
        for count in (1, 2, 8):  # the product merges
            assert joined.kernels(count, 1) == {"attention_rows": 1, "linear_q4_gemv": 1}
        assert joined.kernels(3, 0)["write_pages"] == joined.kernels(3, 0)["rope_halves"] == 1


def test_several_rows_of_a_sequence() -> None:
    """Rows see the keys of those before them in the same run."""
    with Run(graph(False)) as apart, Run(graph(True)) as joined:
        for rows in ([(0, p) for p in range(5)], [(1, 40), (0, 5), (0, 6), (0, 7)], [(0, 8), (1, 41)]):
            single = int(len({s for s, _ in rows}) == len(rows))
            want = apart(rows, 0)
            np.testing.assert_allclose(joined(rows, single), want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_what_has_no_place_is_not_written() -> None:
    """Rows without a sequence, a page or a position inside the tables change no page."""
    lost = [(-1, 3), (SEQUENCES, 0), (2, 20), (1, WIDTH * PAGE), (3, -1)]
    after = [(s, WIDTH * PAGE - 1) for s in range(SEQUENCES)]  # which see all pages
    with Run(graph(True)) as run, Run(graph(True)) as other:
        for each in (run, other):
            each.tables[2, 1] = -1
        run(lost, 1)
        np.testing.assert_array_equal(run(after, 1), other(after, 1))


def test_few_bindings() -> None:
    """A kernel that rotates binds ten buffers, one that only writes pages binds eight."""
    with Run(graph(True), max_storage_buffers=9) as nine, Run(graph(False)) as apart:
        assert nine.kernels(2, 1)["rope_halves"] == 1 and nine.kernels(2, 1)["write_pages"] == 0
        for rows in RUNS[:4]:
            np.testing.assert_allclose(nine(rows, 1), apart(rows, 0), rtol=0, atol=1e-4)
