"""Bytes and flops of dispatches: what a launch needs of its operands at their live sizes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graphs import Sketch, plan_of

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.graph.graph import Arg
from ptegpu.ops.attention_record import visible
from ptegpu.passes.split import split_constants
from ptegpu.plan.plan import Plan
from ptegpu.plan.resolve import plan_at
from ptegpu.plan.target import Target

Figures = tuple[int, int, int]  # bytes read, bytes written, flops


def figures(plan: Plan) -> list[Figures]:
    return [(d.read_bytes, d.write_bytes, d.flops) for d in plan.dispatches]


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


CASES: list[tuple[str, list[Arg | np.ndarray], DType, list[Figures]]] = [
    ("aten.relu.default", [f32(3, 5)], DType.F32, [(60, 60, 0)]),
    ("aten.add.Tensor", [f32(3, 5), f32(5)], DType.F32, [(80, 60, 0)]),
    ("aten.slice_copy.Tensor", [f32(8, 5), 0, 2, 4], DType.F32, [(40, 40, 0)]),
    ("aten.expand_copy.default", [f32(1, 5), (3, 5)], DType.F32, [(20, 60, 0)]),
    ("aten.mm.default", [f32(3, 16), f32(16, 5)], DType.F32, [(192 + 320, 60, 480)]),
    ("aten.linear.default", [f32(3, 16), f32(5, 16), f32(5)], DType.F32, [(192 + 320 + 20, 60, 480)]),
    ("aten.bmm.default", [f32(2, 3, 16), f32(2, 16, 5)], DType.F32, [(384 + 640, 120, 960)]),
    ("aten.embedding.default", [f32(100, 4), np.zeros(3, np.int32)], DType.F32, [(48 + 12, 48, 0)]),
    ("aten.index_select.default", [f32(100, 4), 0, np.zeros(3, np.int32)], DType.F32, [(48 + 12, 48, 0)]),
    (
        "et_vk.embedding_q4gsw.default",
        [np.zeros((100, 16), np.uint8), f32(100, 1), 32, np.zeros(2, np.int32)],
        DType.F32,
        [(8 + 32 + 8, 256, 0)],
    ),
    (
        "et_vk.linear_q4gsw.default",
        [f32(1, 32), np.zeros((8, 16), np.uint8), f32(1, 8), 32],
        DType.F32,
        [(128 + 128 + 32, 32, 512)],
    ),
    (
        "aten.convolution.default",
        [f32(1, 8, 6), f32(8, 1, 3), None, (1,), (1,), (1,), False, (0,), 8],
        DType.F32,
        [(192 + 96, 192, 288)],
    ),
    (
        "aten.convolution.default",
        [f32(1, 2, 6), f32(2, 2, 3), None, (2,), (1,), (1,), True, (0,), 1],
        DType.F32,
        [(48 + 48, 88, 144)],
    ),
]


@pytest.mark.parametrize("op, args, dtype, expected", CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_figures(op: str, args: list[Arg | np.ndarray], dtype: DType, expected: list[Figures]) -> None:
    s = Sketch()
    operands = [s.constant(a) if isinstance(a, np.ndarray) else a for a in args]
    plan, _ = plan_of(s.returns(s.tensor(op, *operands, dtype=dtype)))
    assert expected == figures(plan)


def test_a_cast_into_a_packed_type_has_its_own() -> None:
    s = Sketch()
    plan, _ = plan_of(s.returns(s.tensor("aten._softmax.default", s.input(3, 5, dtype=DType.F16), -1, False)))
    assert [(30, 60, 0), (60, 30, 0)] == figures(plan)


def test_a_constant_in_parts_counts_part_by_part() -> None:
    target = Target(max_binding_bytes=1024)
    s = Sketch()
    y = s.tensor("aten.linear.default", s.input(1, 16), s.constant(f32(32, 16)))
    graph = s.returns(y)
    split_constants(graph, target)
    parts = figures(plan_of(graph, target)[0])
    assert len(parts) > 1
    assert 32 * 16 * 4 == sum(read - 64 for read, _, _ in parts)
    assert 2 * 32 * 16 == sum(flops for _, _, flops in parts)


def test_caches_count_up_to_the_position_now() -> None:
    s = Sketch()
    q, start = s.input(1, 2, 4, 8), s.sym(3)
    keys, values = s.state(1, 64, 2, 8), s.state(1, 64, 2, 8)
    y = s.tensor("llama.custom_sdpa.default", q, keys, values, start, None, 0.0, True)
    graph = s.returns(y)
    for position, pairs in ((3, 4 + 5), (61, 62 + 63), (63, 64 + 64)):
        planner = Planner(graph, Target())
        planner.extend([q.shape, position], lambda *_: 0)
        first = plan_at(planner.plan(), [q.shape, position], lambda *_: 0).dispatches[0]
        rows = min(position + 2, 64)
        assert (256 + 2 * rows * 64, 2 * 4 * pairs * 16) == (first.read_bytes, first.flops)


def test_a_write_into_a_cache_counts_what_it_changes() -> None:
    s = Sketch()
    s.node("llama.update_cache.default", s.input(1, 2, 4, 8), s.state(1, 64, 4, 8), s.sym(3))
    plan, _ = plan_of(s.returns())
    assert [(256, 256, 0)] == figures(plan)


@pytest.mark.parametrize(
    "queries, keys, causal, start, expected",
    [
        (3, 10, False, None, (30, 10)),
        (3, 10, False, 4, (21, 7)),
        (3, 10, True, 4, (5 + 6 + 7, 7)),
        (3, 10, True, None, (1 + 2 + 3, 3)),
        (3, 10, True, 9, (30, 10)),
        (2, 10, True, -5, (3, 2)),
    ],
)
def test_pairs_of_attention(
    queries: int, keys: int, causal: bool, start: int | None, expected: tuple[int, int]
) -> None:
    assert expected == visible(queries, keys, causal, start)
