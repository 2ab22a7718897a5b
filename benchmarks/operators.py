"""Every operator with a case at a real size: the `BENCHMARKS` of the tables in `tests/ops`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ptegpu.plan.resolve import plan_at

from .harness import EAGER, Bench, Row, Way, difference

HALF = 1e-2  # of results in f16
QUICK = 2  # cases, which are small


def operators(bench: Bench) -> Iterator[Row]:
    """µs of every operator family at real sizes, GPU time; the peer is one of many calls of PyTorch's in a row."""
    bench.need_torch()
    from tests.cases import tables

    cases = [case for case in tables("CASES" if bench.quick else "BENCHMARKS") if bench.wants(str(case))]
    for case in cases[:QUICK] if bench.quick else cases:
        arrays = values(case)
        goldens: list[np.ndarray] = []
        peer = bench.row("operators", str(case), EAGER, theirs, bench, case, arrays, goldens)
        if peer.failure or peer.value is not None:
            yield peer
        for way in bench.ways if goldens else ():
            yield bench.row("operators", str(case), way, ours, bench, way, case, arrays, goldens)


def values(case: Any) -> dict[int, np.ndarray]:
    """Return the arrays for the tensors of a case."""
    from tests.cases import T, walk

    arrays: dict[int, np.ndarray] = {}
    rng = np.random.default_rng(0)
    walk(list(case.args), lambda a: arrays.update({id(a): a.make(rng)}) if isinstance(a, T) else None)
    return arrays


def theirs(bench: Bench, case: Any, arrays: dict[int, np.ndarray], goldens: list[np.ndarray]) -> dict[str, Any]:
    """Add PyTorch's results to `goldens`, and return its time if it has the operator or the case names a peer."""
    from tests.cases import S, T, walk
    from tests.oracle import call, reference, torch_operator

    if not bench.cuda:
        results = reference(case, arrays, wide=False)
        goldens += results[: len(results) - len(case.mutated)]
        return {}

    def value(a: Any) -> Any:
        if isinstance(a, T):
            t = bench.cuda.from_numpy(arrays[id(a)].copy()).to(bench.where)
            return t.long() if t.dtype == bench.cuda.int32 else t
        return a.value if isinstance(a, S) else a

    args = walk(list(case.args), value)

    def own() -> Callable[..., Any]:
        operator = torch_operator(case.op)
        return lambda *args: call(operator, args)

    result = (case.reference or own())(*args)
    outs = list(result) if isinstance(result, tuple | list) else [result]
    goldens += [o.detach().cpu().contiguous().numpy() for o in outs]
    if case.reference and not case.peer:
        return {}
    peer = case.peer or own()
    seconds = bench.cuda_seconds(lambda: peer(*args), 10)
    return {"value": seconds * 1e6, "unit": "µs", "gpu": seconds}


def ours(bench: Bench, way: Way, case: Any, arrays: dict[int, np.ndarray], goldens: list[np.ndarray]) -> dict[str, Any]:
    from tests.cases import given, graph_of, plan_of, sizes_of

    graph, prepared = graph_of(case, arrays, [*goldens, *(arrays[id(case.args[k])] for k in case.mutated)])
    inputs = given(graph, case, prepared)
    plan = plan_of(graph, bench.target(way), inputs)
    seconds, results = bench.timed(bench.device(way.engine), plan, inputs)
    ran = [d for d in plan_at(plan, *sizes_of(inputs)).dispatches if 0 not in d.grid]
    floats = [(got, want) for got, want in zip(results, goldens) if got.dtype.kind == "f" and got.size]
    allowed = case.atol if isinstance(case.atol, float) else max(case.atol or (0.0,))
    halves = any(got.dtype == np.float16 for got, _ in floats)
    return {
        "value": seconds * 1e6,
        "unit": "µs",
        "gpu": seconds,
        "nbytes": sum(d.nbytes for d in ran),
        "flops": sum(int(d.flops) for d in ran),
        "dispatches": len(ran),
        "error": max((difference(got, want) for got, want in floats), default=None),
        "tolerance": allowed or (HALF if halves else None),
    }
