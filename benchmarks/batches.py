"""Texts of many clients at once with the 4-bit model of `llm.py`, through `BatchEngine`; a step's profile.

Tokens per second count all clients, from the latest first token to the earliest last one. A step has one row for each
client, at position `CONTEXT`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from ptegpu.models.text.batch import BatchEngine
from ptegpu.models.text.handle import Piece
from ptegpu.models.text.paged import PagedRunner
from ptegpu.models.text.sampling import Sampler, Sampling
from ptegpu.models.text.schedule import PlannedRun, TextRequest

from .harness import Bench, Row, Way
from .llm import shape, weights_of

CLIENTS, QUICK_CLIENTS = (1, 8, 32, 64), (1, 3)
PROMPT, CONTEXT = 16, 128  # tokens of a prompt; the position of a profiled step
SHOWN = 12  # kernels of a step


def batches(bench: Bench) -> Iterator[Row]:
    """Tokens per second of 1 to 64 clients that share a 4-bit model of Llama-3.2-1B's shape, greedy."""
    for clients in QUICK_CLIENTS if bench.quick else CLIENTS:
        case = f"{clients} clients" if clients > 1 else "1 client"
        if bench.wants(case):
            for way in bench.ways:
                yield bench.row("batches", case, way, written, bench, way, clients)


def engine_of(bench: Bench, way: Way) -> BatchEngine:
    """Return the engine for a way, opened once."""
    weights = weights_of(bench)

    def load() -> BatchEngine:
        options = bench.options(way) | {"sequences": CLIENTS[-1], "queue": None, "one_by_one": False}
        return bench.resources.enter_context(BatchEngine(weights.path, data=weights.views, **options))

    return bench.shared(("batches", way), load)  # type: ignore[no-any-return]


def written(bench: Bench, way: Way, clients: int) -> dict[str, Any]:
    engine, s = engine_of(bench, way), shape(bench.quick)
    write(bench, engine, clients, 8)  # compiles the kernels
    rates = [write(bench, engine, clients, s.steps) for _ in range(2)]
    run = step_of(bench, engine, clients)
    method, arguments = engine.runner.method, engine.runner.arguments(run)  # type: ignore[attr-defined]
    figures = {"value": max(rates), "unit": "tok/s"} | bench.profiled(method, arguments)
    if bench.profile:
        rows = method.profile(*arguments, repeats=bench.repeats).rows("kernel")
        bench.console.print(f"{way}, a step of {clients}, each kernel in a pass of its own:", highlight=False)
        for row in rows[:SHOWN]:
            bench.console.print(f"{row.seconds * 1e6:9.1f} µs {row.count:5} × {row.name}", highlight=False)
    return figures


def write(bench: Bench, engine: BatchEngine, clients: int, count: int) -> float:
    """Let clients write `count` tokens each at once; return the tokens per second while all of them do."""
    times: list[list[float]] = [[] for _ in range(clients)]

    def note(k: int, outcome: object) -> None:
        if isinstance(outcome, Piece) and outcome.token is not None:
            times[k].append(time.perf_counter())

    prompt, tokens = min(PROMPT, shape(bench.quick).chunk // 2), weights_of(bench).tokens
    handles = [
        engine.submit(
            tokens[k * prompt : (k + 1) * prompt].tolist(), {"max_tokens": count, "stop_tokens": ()}, partial(note, k)
        )
        for k in range(clients)
    ]
    while any(handle.generation.finish_reason is None for handle in handles):
        time.sleep(0.005)
        if error := engine.stats().error:
            raise RuntimeError(error)
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    return sum(begin < t <= end for each in times for t in each) / (end - begin) if end > begin else 0.0


def step_of(bench: Bench, engine: BatchEngine, clients: int) -> PlannedRun:
    """Return a run with a row for each client."""
    runner = engine.runner
    assert isinstance(runner, PagedRunner)
    position = min(CONTEXT, shape(bench.quick).context // 2)
    size, run = runner.scheduler.pages.size, PlannedRun()
    each = position // size + 1
    for k in range(clients):
        sampler = Sampler(Sampling(), shape(bench.quick).vocabulary)
        request = TextRequest([1] * (position + 1), 1, sampler, shape(bench.quick).context)
        request.slot, request.pages = k, list(range(k * each, (k + 1) * each))
        run.requests.append(request)
        run.tokens.append(1)
        run.rows.append((k, position))
        run.sample_rows.append(k)
        run.sample_requests.append(request)
        run.steps.append(0)
        run.proposals.append(())
    return run
