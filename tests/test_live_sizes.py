"""Every case once more below the maximum: its inputs are declared larger than they are when it runs.

Sizes grow together, as dimensions do that one symbol names: all that are equal, wherever the operator's shape rule
allows it. Memory and plan are then made for the larger shapes, and the run has the case's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ptegpu.errors import PtegpuError
from ptegpu.ops.registry import REGISTRY
from tests.cases import Problem, T, device, graph_of, tables, walk
from tests.graphs import settle
from tests.oracle import problem

MORE = 3
WITHOUT_SIZES = {  # no input of theirs has a size that could change: sizes are numbers, or all are states
    *(f"aten.{name}" for name in ("full.default", "zeros.default", "ones.default", "empty.memory_format")),
    *(f"aten.{name}" for name in ("arange.default", "arange.start_step", "scalar_tensor.default")),
    "et_vk.adamw_step.default",
}
CASES = list(tables())


def grown(given: Problem) -> Problem | None:
    """The same problem with every size that may change declared larger, or None where none may."""
    case = given.case
    mutated = REGISTRY[case.op].mutates
    fixed = {id(a) for k in mutated for a in [case.args[k]]}
    sizes: set[int] = set()
    walk(list(case.args), lambda a: sizes.update(a.shape) if _may_grow(a, fixed) else None)
    chosen: set[int] = set()
    found = None
    for size in sorted(sizes):
        try:
            candidate = _declared(given, {*chosen, size}, fixed)
            graph, _ = graph_of(candidate.case, candidate.arrays, candidate.eager)
            settle(graph)
        except PtegpuError:
            continue
        if any(out.rank != e.ndim for out, e in zip(graph.nodes[0].outs, given.eager)):  # squeezed only where it is 1
            continue
        chosen.add(size)
        found = candidate
    return found


def _may_grow(a: Any, fixed: set[int]) -> bool:
    return isinstance(a, T) and not a.constant and a.limit is None and id(a) not in fixed


def _declared(given: Problem, sizes: Iterable[int], fixed: set[int]) -> Problem:
    arrays = dict(given.arrays)
    made: dict[int, T] = {}

    def larger(a: Any) -> Any:
        if not _may_grow(a, fixed):
            return a
        if id(a) not in made:
            made[id(a)] = replace(a, limit=tuple(n + MORE if n in sizes else n for n in a.shape))
            arrays[id(made[id(a)])] = given.arrays[id(a)]
        return made[id(a)]

    args = tuple(walk(list(given.case.args), larger))
    return replace(given, case=replace(given.case, args=args), arrays=arrays)


@pytest.mark.parametrize("op", sorted({case.op for case in CASES}))
def test_below_the_maximum(op: str) -> None:
    ran = 0
    for case in (c for c in CASES if c.op == op):
        larger = grown(problem(case))
        if larger is not None:
            try:
                larger.check(device())
            except Exception as e:
                e.add_note(str(case))
                raise
            ran += 1
    assert bool(ran) == (op not in WITHOUT_SIZES)
