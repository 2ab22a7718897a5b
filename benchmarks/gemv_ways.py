"""The fastest ways to divide a 4-bit linear layer on this GPU: every `Gemv` of a grid, by size of the weight.

The way that `ptegpu.ops.packed_gemv.GEMVS` takes is marked. The fastest should be in that table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

from rich.progress import track

from ptegpu.compiler.planner import Planner
from ptegpu.gpu import LoadedPlan, Session, SharedConstants
from ptegpu.gpu.measurement import warm
from ptegpu.gpu.timing import Timer
from ptegpu.kernels.gemv import Gemv
from ptegpu.ops import packed_gemv
from ptegpu.ops.packed_gemv import GemvChoice
from ptegpu.passes.memory import ConstantKey
from ptegpu.plan.target import Target

from .harness import Bench, Row, Way
from .products import Layers

SHAPES = ((128256, 2048), (16384, 2048), (2048, 8192), (2048, 2048))
MOST_SUMS = 32  # of one invocation
SHOWN = 8  # of the fastest


def ways(bench: Bench) -> Iterator[Row]:
    """µs of a 4-bit matrix by a vector, for each way to divide the work: the fastest, and the one that is taken."""
    for n, k in ((64, 256),) if bench.quick else SHAPES:
        case = f"{n} × {k}"
        if not bench.wants(case):
            continue
        layers = Layers(n, k)
        for way in bench.ways:
            results: list[tuple[float, str]] = []
            row = bench.row("ways", case, way, swept, bench, way, layers, results)
            if row.failure or row.missing:
                yield row
            for number, (seconds, label) in enumerate(results):
                if number < SHOWN or "taken" in label:
                    figures = {"value": seconds * 1e6, "unit": "µs", "gpu": seconds, "nbytes": layers.nbytes}
                    yield bench.row("ways", case, way, dict, figures | {"note": label})


def grid(m: int, target: Target) -> Iterator[GemvChoice]:
    """Yield the ways to measure, with workgroups of 64 to 256 invocations."""
    words_of = (1, 4) if m == 1 else (1, 2)
    for rows, lanes, words, staged in itertools.product((1, 2, 4, 8), (32, 64, 256), words_of, (False, True)):
        for workgroup in (64, 128, 256):
            if lanes <= workgroup <= target.max_invocations and rows * m <= MOST_SUMS:
                yield GemvChoice(Gemv(rows, lanes, words, workgroup // lanes, staged))


def fits(choice: GemvChoice, k: int, rows: int, target: Target) -> bool:
    """Return whether there is a load for each lane, and enough shared memory."""
    loads = -(-k // (8 * choice.gemv.words))
    shared = rows * loads * choice.gemv.words * 32 if choice.gemv.staged else 0
    tree = 0 if target.subgroup_size else choice.gemv.rows * choice.gemv.lanes * choice.gemv.slots * 4
    return choice.gemv.lanes <= loads and shared + tree + 1024 <= target.max_shared_bytes


def name(choice: GemvChoice) -> str:
    g = choice.gemv
    return f"rows {g.rows}, lanes {g.lanes}, words {g.words}, slots {g.slots}{', staged' * g.staged}"


def swept(bench: Bench, way: Way, layers: Layers, results: list[tuple[float, str]]) -> dict[str, float]:
    """Add (seconds of a layer, way) to `results`, fastest first."""
    device, target, graph = bench.device(way.engine), bench.target(way), layers.graph()
    names: dict[ConstantKey, str] = {}
    table = packed_gemv.GEMVS
    current = next(c for c in table if c.when(layers.rows, layers.n, layers.k))
    choices = [(f"{name(current)}  (taken)", current)]
    choices += [(name(c), c) for c in grid(layers.rows, target) if fits(c, layers.k, layers.rows, target)]
    if bench.quick:
        choices = choices[:3]
    prepared: dict[str, tuple[Session, LoadedPlan]] = {}
    with ExitStack() as sessions:  # one per way; all share the weights
        constants = SharedConstants()
        for label, choice in track(choices, "compiling", console=bench.console, transient=True):
            packed_gemv.GEMVS = (GemvChoice(choice.gemv),)
            try:
                plan = Planner(graph, target, names=names).cover().plan()
            finally:
                packed_gemv.GEMVS = table
            session = sessions.enter_context(Session(device, constants))
            prepared[label] = session, session.prepare(plan)
        warm(device)
        timer = Timer(device, each=False)
        order = list(prepared) * 5
        with timer.watching([session for session, _ in prepared.values()]):
            for label in order:
                session, plan_of = prepared[label]
                session.run(plan_of, [layers.x], read=[])
    best = dict.fromkeys(prepared, float("inf"))
    for label, run in zip(order, timer.runs, strict=True):
        best[label] = min(best[label], *(end - begin for begin, end in run.spans))
    results.extend(sorted((seconds / layers.count, label) for label, seconds in best.items()))
    return {}
