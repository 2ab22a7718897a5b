"""What the host does for a call: recording dispatches, replaying a step, prompts of new lengths. Needs no PyTorch.

Seconds of the host are those until a call is submitted, with the GPU idle when it begins.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.resources import files
from statistics import median
from typing import Any

import numpy as np

import ptegpu
from ptegpu.gpu import Counters, Session
from ptegpu.llm import LanguageModel
from ptegpu.plan.plan import Binding, Buffer, Dispatch, Kernel, Plan, fixed

from .harness import Bench, Row, Way

DEMO = files("ptegpu") / "demo" / "tales.pte"
NBYTES = 256
WGSL = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {{
    y[id.x] = x[id.x] + {addend};
}}
"""


def created(done: Counters) -> str:
    """What calls made: nothing, one hopes."""
    counts = (done.buffers_created, done.bind_groups_created, done.pipelines_created)
    return ", ".join(f"{n} {what}" for n, what in zip(counts, ("buffers", "bind groups", "pipelines"))) + " created"


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


def chain(dispatches: int) -> Plan:
    """A plan that adds 1 and 2 in turn, from one of two buffers to the other."""
    kernels = tuple(Kernel(f"add_{n}", WGSL.format(addend=f"{n}.0"), ("read", "write"), 64) for n in (1, 2))
    buffers = tuple(Buffer(name, NBYTES, "temp") for name in ("even", "odd"))
    steps = tuple(
        Dispatch(n % 2, (Binding(n % 2, 0, NBYTES), Binding(1 - n % 2, 0, NBYTES)), (1, 1), f"add {n}")
        for n in range(dispatches)
    )
    return fixed("chain", buffers, kernels, steps)


def recorded(bench: Bench, way: Way, plan: Plan, repeats: int) -> dict[str, Any]:
    device = bench.device(way.engine)
    with Session(device) as session:
        prepared = session.prepare(plan)

        def once() -> float:
            device.wait()
            start = time.perf_counter()
            run = session.start(prepared, [])
            taken = time.perf_counter() - start
            run.result()
            return taken

        return per_dispatch([once() for _ in range(repeats + 1)], plan)


def per_dispatch(times: list[float], plan: Plan) -> dict[str, Any]:
    seconds = median(times[1:])
    return {"value": seconds / len(plan.dispatches) * 1e6, "unit": "µs", "host": seconds}


def through_wgpu_py(bench: Bench, plan: Plan, repeats: int) -> dict[str, Any]:
    """The same plan with objects of wgpu-py, on a device of its own."""
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
        taken = time.perf_counter() - start
        device.queue.read_buffer(buffers[0])  # waits
        return taken

    return per_dispatch([once() for _ in range(repeats + 1)], plan)


def replay(bench: Bench) -> Iterator[Row]:
    """A decode step of the bundled language model: until it is submitted (host), and until its result is read."""
    case = "bundled model"
    if bench.wants(case):
        for way in bench.engines:
            yield bench.row("replay", case, way, replayed, bench, way)


def replayed(bench: Bench, way: Way) -> dict[str, Any]:
    steps = 10 if bench.quick else 500
    with ptegpu.load(str(DEMO), methods=["forward"], **bench.how(way)) as program:
        forward, token = program.method("forward"), np.array([[5]])
        for position in range(3):
            forward(token, np.array([position]))
        before = program.device.counters.snapshot()
        host, whole = [], []
        for step in range(steps):
            position = np.array([3 + step % 250])
            began = time.perf_counter()
            run = forward.start([token, position])
            host.append(time.perf_counter() - began)
            run.result()
            whole.append(time.perf_counter() - began)
        done = program.device.counters.snapshot().since(before)
    return {
        "value": median(whole) * 1e6,
        "unit": "µs",
        "host": median(host),
        "dispatches": done.dispatches // done.submits,
        "note": created(done),
    }


def lengths(bench: Bench) -> Iterator[Row]:
    """µs of the host for a prompt of a new length, all kernels compiled before, and for the same length again."""
    for way in bench.engines:
        for case in filter(bench.wants, ("a new length", "the same length again")):
            yield bench.row("lengths", case, way, prompts, bench, way, case)


def prompts(bench: Bench, way: Way, case: str) -> dict[str, Any]:
    new, again, note = bench.shared(("lengths", way), lambda: seen(bench, way))
    seconds = median(new if case == "a new length" else again)
    return {"value": seconds * 1e6, "unit": "µs", "host": seconds, "note": note}


def seen(bench: Bench, way: Way) -> tuple[list[float], list[float], str]:
    """Seconds of prompts of new lengths, of some more after each, and what they made."""
    with LanguageModel(str(DEMO), **bench.how(way)) as model:
        model.program.prepare()
        forward, device, nothing = model._forward, model.program.device, np.zeros((1, 0), np.int32)

        def call(length: int) -> float:
            tokens = np.ones((1, length), model.signature.tokens.numpy)
            arguments = model._arguments(tokens, 0, None, 0, None, nothing)
            device.wait()
            start = time.perf_counter()
            run = forward.start(arguments)
            host = time.perf_counter() - start
            run.result()
            return host

        longest = min(model.chunk, 250)
        for length in (longest, 2, longest):
            call(length)
        before = device.counters.snapshot()
        new, again = [], []
        for length in np.random.default_rng(0).permutation(np.arange(3, longest))[: 3 if bench.quick else 100]:
            new.append(call(int(length)))
            again += [call(int(length)) for _ in range(5)]
        return new, again, created(device.counters.snapshot().since(before))
