"""Nonsensical scalars, one at a time: every operator ends in a plan, a result or an error of ours.

Nothing here runs on a GPU: shape rules run and are lowered.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cases import Case, T, graph_of, tables, walk
from tests.graphs import settle
from tests.oracle import reference
from tests.portable import harness

from ptegpu.compiler.plan_writer import PlanWriter
from ptegpu.compiler.planner import planned
from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, InvalidProgram, PtegpuError
from ptegpu.graph.graph import Graph, Tensor
from ptegpu.passes.memory import Memory
from ptegpu.plan.target import Target
from ptegpu.portable import OutSpec, call

HUGE = 2**62  # beyond any memory, so it is never filled
SCALARS = (0, -1, HUGE, -(2**63), 2**64, 0.5, math.inf, math.nan, 1e308, None, True, "x")
HOSTILE = (*SCALARS, (), (0,), (-1, 2, 3), (None,), (math.inf,), (HUGE,), (1,) * 9)
MAX_ELEMENTS = 1 << 24  # of a result that is lowered


def places(args: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the places of scalars and lists."""
    if isinstance(args, list | tuple):
        yield from [at] if at else []
        for k, item in enumerate(args):
            yield from places(item, (*at, k))
    elif not isinstance(args, T | np.ndarray):
        yield at


def put(args: Any, at: tuple[int, ...], value: Any) -> Any:
    if not at:
        return value
    return [put(item, at[1:], value) if k == at[0] else item for k, item in enumerate(args)]


def variants(args: Any) -> Iterator[Any]:
    """Yield the arguments with one scalar or list replaced."""
    for at, value in itertools.product(list(places(args)), HOSTILE):
        yield put(args, at, value)


def escapes(attempt: Callable[..., Any], *args: Any) -> list[str]:
    """Return the errors that are not ptegpu's own."""
    try:
        attempt(*args)
    except PtegpuError as e:
        assert str(e)
    except Exception as e:
        return [f"{type(e).__name__}: {e} for {args[0]}"]
    return []


GPU = {case.op: case for case in reversed(list(tables()))}  # the first case of each operator


@pytest.mark.parametrize("op", sorted(GPU))
def test_a_rule_refuses_nonsense_with_an_error_of_ours(op: str) -> None:
    case, rng = GPU[op], np.random.default_rng(0)
    arrays: dict[int, np.ndarray] = {}
    walk(list(case.args), lambda a: arrays.update({id(a): a.make(rng)}) if isinstance(a, T) else None)
    outs = reference(case, arrays, wide=False)

    def plan(changed: Case, agreeing: bool) -> None:
        graph, _ = graph_of(changed, arrays, outs)
        (node,) = graph.nodes
        if agreeing:  # declare the shapes of the rule, so that it can be lowered
            results = [o for o in node.outs if isinstance(o, Tensor)]
            for out, shape in zip(results, node.op.infer(node.args, results), strict=True):
                out.max_shape = out.shape = shape
        sizes = [o.max_shape for o in node.outs if isinstance(o, Tensor)]
        if all(min(shape, default=0) >= 0 and math.prod(shape) <= MAX_ELEMENTS for shape in sizes):
            settle(graph)
            planned(graph, Target())

    changes = [Case(op, tuple(args), out=case.out, mutated=case.mutated) for args in variants(case.args)]
    assert [] == [e for c in changes for agreeing in (False, True) for e in escapes(plan, c, agreeing)]


HOST = {
    case.name: case
    for path in sorted(Path(harness.__file__).parent.glob("test_*.py"))
    for case in reversed(getattr(importlib.import_module(f"tests.portable.{path.stem}"), "CASES", []))
}


@pytest.mark.parametrize("op", sorted(HOST))
def test_a_kernel_of_the_host_refuses_nonsense_with_an_error_of_ours(op: str) -> None:
    case = HOST[op]
    specs = [harness.spec(w) for w in harness.expected(case)]
    args = harness.to_numpy(list(case.args))
    assert [] == [e for changed in variants(args) for e in escapes(call, op, changed, specs)]


def test_a_literal_for_a_symbolic_int_is_within_32_bits() -> None:
    tables = PlanWriter(Graph("g"), Memory(), Target())
    assert [0, 1] == [tables.word(2**31 - 1), tables.word(-(2**31))]
    with pytest.raises(InvalidProgram) as error:
        tables.word(2**31)
    assert "the int 2147483648 does not fit int32, which is what the GPU computes with" == str(error.value)


@pytest.mark.parametrize("repeats", [[2**62] * 4, [2**48]])
def test_more_elements_than_memory_holds_are_refused(repeats: list[int]) -> None:
    with pytest.raises(ExecutionError) as error:
        call("aten.repeat_interleave.Tensor", [np.array(repeats)], [OutSpec(DType.I64, (9,))])
    assert f"its result is [{sum(repeats)}], the program allows at most [9]" == str(error.value)
