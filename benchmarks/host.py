"""The host's work for a call: recording dispatches, whole calls, prompts of new lengths. Needs no PyTorch."""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.resources import files
from statistics import median
from typing import Any

import numpy as np

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.gpu import Counters, Session, SharedConstants
from ptegpu.gpu.loaded import CombinedLaunches
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.batch import BatchEngine
from ptegpu.models.text.sampling import NO_SAMPLING
from ptegpu.plan.method import CompiledMethod, Run, Var
from ptegpu.plan.plan import Binding, Buffer, Kernel, Plan, PlannedDispatch, Port, fixed
from ptegpu.runtime.method import MethodRunner

from .harness import Bench, Row, Way

DEMO = files("ptegpu") / "demo" / "tales.pte"
WGSL = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {{
    y[id.x] = x[id.x] + {addend};
}}
"""
Times = tuple[float, float]  # seconds until submitted, and until done
Call = Callable[[], Times]


def created(done: Counters) -> str:
    """Return a note on the objects that calls created, ideally none."""
    counts = (done.buffers_created, done.bind_groups_created, done.pipelines_created)
    return ", ".join(f"{n} {noun}" for n, noun in zip(counts, ("buffers", "bind groups", "pipelines"))) + " created"


def record(bench: Bench) -> Iterator[Row]:
    """µs of the host per dispatch, to record and submit a plan of many tiny ones; the peer is wgpu-py's own path."""
    count, repeats = (50, 5) if bench.quick else (500, 100)
    plan = chain(count)
    case = f"{count} dispatches"
    if not bench.wants(case):
        return
    yield bench.row("record", case, "wgpu-py", through_wgpu_py, bench, plan, repeats)
    for way in bench.engines:
        yield bench.row("record", case, way, recorded, bench, way, plan, repeats)


def chain(dispatches: int, shape: tuple[int, ...] = (1, 64)) -> Plan:
    """Return a plan that adds 1 and 2 in turn to the first 64 elements of its input."""
    kernels = tuple(Kernel(f"add_{n}", WGSL.format(addend=f"{n}.0"), ("read", "write"), 64) for n in (1, 2))
    buffers = (
        Buffer("input", max(256, int(np.prod(shape)) * 4), "input"),
        *(Buffer(name, 4096, "temp") for name in ("even", "odd")),
    )
    places = [0, *(1 + n % 2 for n in range(dispatches))]
    steps = [
        PlannedDispatch(n % 2, (Binding(places[n], 0, 256), Binding(places[n + 1], 0, 256)), (1, 1), f"add {n}")
        for n in range(dispatches)
    ]
    x, y = Port("x", 0, DType.F32, shape), Port("y", places[-1], DType.F32, (1, 1000))
    return fixed("chain", buffers, kernels, steps, inputs=[x], outputs=[y])


def recorded(bench: Bench, way: Way, plan: Plan, repeats: int) -> dict[str, Any]:
    device = bench.device(way.engine)
    with Session(device) as session:
        prepared, x = session.prepare(plan), np.ones((1, 64), np.float32)

        def once() -> float:
            device.wait()
            start = time.perf_counter()
            run = session.start(prepared, [x], read=[])
            seconds = time.perf_counter() - start
            run.result()
            return seconds

        return per_dispatch([once() for _ in range(repeats + 1)], plan)


def per_dispatch(times: list[float], plan: Plan) -> dict[str, Any]:
    seconds = median(times[1:])
    return {"value": seconds / len(plan.dispatches) * 1e6, "unit": "µs", "host": seconds}


def through_wgpu_py(bench: Bench, plan: Plan, repeats: int) -> dict[str, Any]:
    """Run a plan with objects of wgpu-py, on a device of its own."""
    import wgpu

    name = bench.device("wgpu").target.name
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["device"] == name]
    device: Any = adapters[0].request_device_sync()
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffers = [device.create_buffer(size=buffer.nbytes, usage=usage) for buffer in plan.buffers]
    modules = [device.create_shader_module(code=kernel.wgsl) for kernel in plan.kernels]
    pipelines = [device.create_compute_pipeline(layout="auto", compute={"module": m}) for m in modules]
    steps = []
    for dispatch in plan.dispatches:
        places = [{"buffer": buffers[b.buffer], "offset": b.offset, "size": b.nbytes} for b in dispatch.bindings]
        entries = [{"binding": number, "resource": place} for number, place in enumerate(places)]
        pipeline = pipelines[dispatch.kernel]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        steps.append((pipeline, group, *dispatch.grid))

    def once() -> float:
        start = time.perf_counter()
        encoder = device.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        last = None
        for pipeline, group, x, y in steps:
            if pipeline is not last:
                compute_pass.set_pipeline(pipeline)
            compute_pass.set_bind_group(0, group)
            compute_pass.dispatch_workgroups(x, y)
            last = pipeline
        compute_pass.end()
        device.queue.submit([encoder.finish()])
        seconds = time.perf_counter() - start
        device.queue.read_buffer(buffers[0])  # waits
        return seconds

    return per_dispatch([once() for _ in range(repeats + 1)], plan)


def calls(bench: Bench) -> Iterator[Row]:
    """µs of a call whose dispatches have empty grids, so that the GPU has nothing to do; host: until submitted."""
    makers: dict[str, Callable[[Bench, Way, ExitStack], Call]] = {
        "1 dispatch": partial(static, 1, (1, 64)),
        "60 dispatches, an image": partial(static, 60, (1, 3, 224, 224)),
        "120 dispatches": partial(static, 120, (1, 64)),
        "60 dispatches, 32 images": partial(static, 60, (32, 3, 224, 224)),
        "decode step": step,
        "a generated token": generate,
        "tokens of 32 texts": generate_many,
    }
    for case, make in makers.items():
        if bench.wants(case):
            for way in bench.engines:
                yield bench.row("calls", case, way, called, bench, way, make)


def called(bench: Bench, way: Way, make: Callable[[Bench, Way, ExitStack], Call]) -> dict[str, Any]:
    repeats, device = 5 if bench.quick else 200, bench.device(way.engine)
    with empty_grids(), ExitStack() as stack:
        call = make(bench, way, stack)
        for _ in range(3):
            call()
        if bench.profile:
            profile(call, repeats)
        before = device.counters.snapshot()
        times = [call() for _ in range(repeats)]
        done = device.counters.snapshot().since(before)
    host, total = (median(column) for column in zip(*times))
    figures = {"value": total * 1e6, "unit": "µs", "note": created(done)}
    return figures | {"dispatches": done.dispatches // max(done.submits, 1), "host": host or None}


@contextmanager
def empty_grids() -> Iterator[None]:
    """Prepare plans with empty grids inside the block."""
    steps = CombinedLaunches.steps

    def empty(self: CombinedLaunches, at: Any) -> Any:
        prepared, largest = steps(self, at)
        nothing = [0] * len(prepared.groups)
        return prepared._replace(x=nothing, y=nothing), largest

    CombinedLaunches.steps = empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        CombinedLaunches.steps = steps  # type: ignore[method-assign]


def static(dispatches: int, shape: tuple[int, ...], bench: Bench, way: Way, stack: ExitStack) -> Call:
    """Return a call of a method of tiny dispatches, as a program runs it."""
    plan = chain(dispatches, shape)
    x = Var("x", DType.F32, shape, kind="input")
    y = Var("y", DType.F32, (1, 1000))
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}])
    outer = CompiledMethod("forward", (x,), (y,), "", tree, (Run(0, (x,), (y,), (0,)),), (plan,), (), (), (x,))
    method, argument = MethodRunner(outer), np.ones(shape, np.float32)
    method.open(bench.device(way.engine), SharedConstants())
    stack.callback(method.close)
    submitted = 0.0

    def watch(mark: str, _: Any) -> None:
        nonlocal submitted
        if mark == "submitted":
            submitted = time.perf_counter()

    method.watch = watch

    def call() -> Times:
        began = time.perf_counter()
        method(argument)
        return submitted - began, time.perf_counter() - began

    return call


def step(bench: Bench, way: Way, stack: ExitStack) -> Call:
    """Return a call that runs a decode step of the bundled language model."""
    program = stack.enter_context(ptegpu.load(str(DEMO), methods=["forward"], **bench.options(way)))
    forward, token, at = program.method("forward"), np.array([[5]]), 0

    def call() -> Times:
        nonlocal at
        at = at % 250 + 1
        position = np.array([at])
        began = time.perf_counter()
        run = forward.start([token, position])
        submitted = time.perf_counter()
        run.result()
        return submitted - began, time.perf_counter() - began

    return call


def generate(bench: Bench, way: Way, stack: ExitStack) -> Call:
    """Return a call that generates text with the bundled language model; its time is that of a token."""
    model = stack.enter_context(LanguageModel(str(DEMO), **bench.options(way)))
    count = 11 if bench.quick else 101

    def call() -> Times:
        timings = model.generate([5, 9, 2], max_tokens=count, stop_tokens=()).timings
        return 0.0, timings.decode_s / timings.decode_tokens

    return call


def generate_many(bench: Bench, way: Way, stack: ExitStack) -> Call:
    """Return a call that writes many texts in a `BatchEngine`; its time is that of a token of each."""
    count = 11 if bench.quick else 101
    engine = stack.enter_context(BatchEngine(str(DEMO), sequences=32, **bench.options(way)))

    def call() -> Times:
        options: Any = {"max_tokens": count, "stop_tokens": ()}
        handles = [engine.submit([5 + k, 9, 2], options) for k in range(32)]
        timings = [handle.wait().timings for handle in handles][-1]
        return 0.0, timings.decode_s / timings.decode_tokens

    return call


def profile(call: Call, repeats: int) -> None:
    """Print a profile of the host."""
    with cProfile.Profile() as profiler:
        for _ in range(repeats):
            call()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def lengths(bench: Bench) -> Iterator[Row]:
    """µs of the host for a prompt of a new length, all kernels compiled before, and for the same length again."""
    for way in bench.engines:
        for case in filter(bench.wants, ("a new length", "the same length again")):
            yield bench.row("lengths", case, way, prompts, bench, way, case)


def prompts(bench: Bench, way: Way, case: str) -> dict[str, Any]:
    new, again, note = bench.shared(("lengths", way), lambda: measured_lengths(bench, way))
    seconds = median(new if case == "a new length" else again)
    return {"value": seconds * 1e6, "unit": "µs", "host": seconds, "note": note}


def measured_lengths(bench: Bench, way: Way) -> tuple[list[float], list[float], str]:
    """Return the seconds of prompts of new lengths, those of the same lengths again, and a note."""
    with LanguageModel(str(DEMO), **bench.options(way)) as model:
        model.program.prepare()
        runner, device = model.runner, model.program.device

        def call(length: int) -> float:
            tokens = np.ones((1, length), model.signature.tokens.numpy)
            arguments = runner.arguments(tokens, 0, NO_SAMPLING)
            device.wait()
            start = time.perf_counter()
            run = runner.method.start(arguments)
            host = time.perf_counter() - start
            run.result()
            return host

        longest = min(runner.chunk, 250)
        for length in (longest, 2, longest):
            call(length)
        before = device.counters.snapshot()
        new, again = [], []
        for length in np.random.default_rng(0).permutation(np.arange(3, longest))[: 3 if bench.quick else 100]:
            new.append(call(int(length)))
            again += [call(int(length)) for _ in range(5)]
        return new, again, created(device.counters.snapshot().since(before))
