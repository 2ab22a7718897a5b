"""Nothing outside of a buffer is written, or matters: one case of each operator with poison behind every buffer."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cases import device, given, graph_of, grows, plan_of
from tests.gpu.plans import ADD, N, add
from tests.poison import accesses
from tests.test_few import PROBLEMS

from ptegpu.gpu.session import Session
from ptegpu.ops.registry import REGISTRY
from ptegpu.plan.plan import Plan
from ptegpu.plan.target import CLASSES

ON_DAWN = os.environ.get("PTEGPU_ENGINE") == "dawn"  # whose compiler takes its time: `tools.sweep --plain` has all
CASES = list(PROBLEMS)[:: 12 if ON_DAWN else 1]
COUNT = 4  # tests that share the cases


def under_poison(plan: Plan, inputs: list[Any]) -> tuple[list[Any], list[str]]:
    def run(after: Callable[[], None]) -> list[Any]:
        with Session(device()) as session:
            results = session.run(session.prepare(plan), inputs)
            after()
            return results

    return accesses(device(), run)


@pytest.mark.parametrize("part", range(COUNT))
def test_cases(part: int) -> None:
    wrong = {}
    for name in CASES[part::COUNT]:
        problem = PROBLEMS[name]
        graph, arrays = graph_of(problem.case, problem.arrays, problem.eager)
        inputs = given(graph, problem.case, arrays)
        target = replace(device().target, device_class=CLASSES["discrete"])
        plan = plan_of(graph, target, inputs, grows(problem.case.args))
        results, marks = under_poison(plan, inputs)
        if REGISTRY[problem.case.op].hollow:  # a program has zeros for its first result: see compiler/stretches.py
            results[0], marks = problem.eager[0], marks[1:]
        if marks:
            wrong[name] = marks
        problem.compare(results, loses=device().target.name.startswith("SwiftShader"))
    assert {} == wrong


def test_what_is_written_outside_is_seen() -> None:
    results, marks = under_poison(add(), [np.ones(N, np.float32)] * 2)  # its kernel writes as far as it is bound
    assert ["y has writes past its end"] == marks
    assert (results[0] == 2).all()


def test_what_is_read_outside_is_seen() -> None:
    reads = replace(ADD, wgsl=ADD.wgsl.replace("id.x < arrayLength(&y)", "id.x < 20").replace("b[id.x]", "b[id.x + 1]"))
    results, marks = under_poison(replace(add(), kernels=(reads,)), [np.ones(N, np.float32)] * 2)
    assert ["result 0 depends on memory outside its buffers"] == marks
    assert (results[0][:-1] == 2).all()
