"""Every case below its maximum sizes: its inputs are declared larger than they are when it runs.

All equal sizes grow together, like dimensions of one symbol, wherever the operator's shape rule allows it. Memory and
plan are made for the larger shapes, and the run has the case's own.
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
WITHOUT_SIZES = {  # without a dynamic input: sizes are numbers, or all inputs are states
    *(f"aten.{name}" for name in ("full.default", "zeros.default", "ones.default", "empty.memory_format")),
    *(f"aten.{name}" for name in ("arange.default", "arange.start_step", "scalar_tensor.default")),
    "et_vk.adamw_step.default",
}
CASES = list(tables())


def grown(original: Problem) -> Problem | None:
    """Return the problem with all dynamic sizes declared larger, or None if it has none."""
    case = original.case
    mutated = REGISTRY[case.op].mutates
    fixed = {id(a) for k in mutated for a in [case.args[k]]}
    sizes: set[int] = set()
    walk(list(case.args), lambda a: sizes.update(a.shape) if _may_grow(a, fixed) else None)
    chosen: set[int] = set()
    largest = None
    for size in sorted(sizes):
        try:
            candidate = _declared(original, {*chosen, size}, fixed)
            graph, _ = graph_of(candidate.case, candidate.arrays, candidate.eager)
            settle(graph)
        except PtegpuError:
            continue
        if any(
            out.rank != e.ndim for out, e in zip(graph.nodes[0].outs, original.eager)
        ):  # squeezed only if the size is 1
            continue
        chosen.add(size)
        largest = candidate
    return largest


def _may_grow(a: Any, fixed: set[int]) -> bool:
    return isinstance(a, T) and not a.constant and a.limit is None and id(a) not in fixed


def _declared(original: Problem, sizes: Iterable[int], fixed: set[int]) -> Problem:
    arrays = dict(original.arrays)
    larger_tensors: dict[int, T] = {}

    def larger(a: Any) -> Any:
        if not _may_grow(a, fixed):
            return a
        if id(a) not in larger_tensors:
            larger_tensors[id(a)] = replace(a, limit=tuple(n + MORE if n in sizes else n for n in a.shape))
            arrays[id(larger_tensors[id(a)])] = original.arrays[id(a)]
        return larger_tensors[id(a)]

    args = tuple(walk(list(original.case.args), larger))
    return replace(original, case=replace(original.case, args=args), arrays=arrays)


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
