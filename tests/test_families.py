"""Plans for dynamic sizes: no size is baked in silently, for every operator case at the sizes it may have."""

from __future__ import annotations

import pytest

from ptegpu.plan.target import Target
from tests.cases import Case, graph_of, planner_of
from tests.families import hold, points
from tests.oracle import problem
from tests.test_live_sizes import CASES, WITHOUT_SIZES, grown

TARGETS = {"every browser": Target(), "with f16 and subgroups": Target(f16=True, subgroups=True, subgroup_size=32)}


def compared(case: Case, target: Target) -> int:
    larger = grown(problem(case))
    if larger is None:
        return 0
    graph, _ = graph_of(larger.case, larger.arrays, larger.eager)
    traced = planner_of(graph, target, dynamic=True).cover()
    plain = planner_of(graph, target, dynamic=True, plain=True)
    return hold(traced, plain, points(traced))


@pytest.mark.parametrize("op", sorted({case.op for case in CASES}))
def test_a_plan_is_what_each_size_would_get(op: str) -> None:
    ran = 0
    for k, case in enumerate(c for c in CASES if c.op == op):
        try:
            ran += compared(case, list(TARGETS.values())[k % len(TARGETS)])
        except Exception as e:
            e.add_note(str(case))
            raise
    assert ran or op in WITHOUT_SIZES
