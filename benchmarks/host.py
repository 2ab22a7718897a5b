"""What a call costs the host: the GPU is given the same dispatches with empty grids, so that it has nothing to do.

    python -m benchmarks.host [--repeats 300] [--device auto] [--profile NAME]

"start" is until the work is submitted, "whole" until the results are there. `chain` is a method of so many tiny
dispatches, called as a program is; `images` has the same with 32 images of 224 × 224 going up; `step` is a decode step
of the bundled language model; `generate` is one of its tokens, inside `LanguageModel.generate`. A call plans, creates
and allocates nothing, which the counters must show. `--profile` shows where the time of one of these goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import numpy as np

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.gpu import Device, SharedConstants, open_device
from ptegpu.gpu.combined import Combined
from ptegpu.graph.linear import Var
from ptegpu.llm import LanguageModel
from ptegpu.plan.bundle import Outer, Run
from ptegpu.plan.plan import Binding, Buffer, Dispatch, Kernel, Plan, Port, fixed
from ptegpu.runtime.method import Method

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


def chain(dispatches: int, shape: tuple[int, ...]) -> Plan:
    """A plan that adds 1 and 2 in turn, of the first 64 elements of its input."""
    kernels = tuple(Kernel(f"add_{n}", WGSL.format(addend=f"{n}.0"), ("read", "write"), 64) for n in (1, 2))
    buffers = (
        Buffer("input", max(256, int(np.prod(shape)) * 4), "input"),
        *(Buffer(name, 4096, "temp") for name in ("even", "odd")),
    )
    places = [0, *(1 + n % 2 for n in range(dispatches))]
    steps = [
        Dispatch(n % 2, (Binding(places[n], 0, 256), Binding(places[n + 1], 0, 256)), (1, 1), f"add {n}")
        for n in range(dispatches)
    ]
    takes, gives = Port("x", 0, DType.F32, shape), Port("y", places[-1], DType.F32, (1, 1000))
    return fixed("chain", buffers, kernels, steps, inputs=[takes], outputs=[gives])


def method_of(plan: Plan, device: Device) -> Method:
    """A method that runs a plan of one input and one output."""
    x = Var("x", DType.F32, plan.inputs[0].shape, kind="input")
    y = Var("y", DType.F32, (1, 1000))
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}])
    outer = Outer("forward", (x,), (y,), "", tree, (Run(0, (x,), (y,), (0,)),), (plan,), (), (), (x,))
    method = Method(outer)
    method.open(device, SharedConstants())
    return method


@contextmanager
def empty_grids() -> Iterator[None]:
    """A block in which plans are made ready with grids of no workgroups."""
    steps = Combined.steps

    def empty(self: Combined, at: Any) -> Any:
        made, largest = steps(self, at)
        return [(pipeline, group, 0, 0) for pipeline, group, _, _ in made], largest

    Combined.steps = empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        Combined.steps = steps  # type: ignore[method-assign]


def static(device: Device, dispatches: int, shape: tuple[int, ...]) -> Call:
    method = method_of(chain(dispatches, shape), device)
    x = np.ones(shape, np.float32)
    submitted = 0.0

    def watch(mark: str, _: Any) -> None:
        nonlocal submitted
        if mark == "submitted":
            submitted = time.perf_counter()

    method.watch = watch

    def call() -> Times:
        began = time.perf_counter()
        method(x)
        return submitted - began, time.perf_counter() - began

    return call


def step(program: ptegpu.Program) -> Call:
    forward = program.method("forward")
    token = np.array([[5]])
    at = 0

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


def generate(model: LanguageModel) -> Call:
    def call() -> Times:
        timings = model.generate([5, 9, 2], max_tokens=101, stop_tokens=()).timings
        return 0.0, timings.decode_s / timings.decode_tokens

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--profile", default="")
    options = parser.parse_args()
    device = open_device(int(options.device) if options.device.isdigit() else options.device)
    tales = str(files("ptegpu") / "demo" / "tales.pte")
    with empty_grids(), ptegpu.load(tales, device=device, methods=["forward"]) as program:
        model = LanguageModel(tales, device=device)
        calls: dict[str, tuple[Call, int]] = {
            "chain 1": (static(device, 1, (1, 64)), options.repeats),
            "chain 60": (static(device, 60, (1, 3, 224, 224)), options.repeats),
            "chain 120": (static(device, 120, (1, 64)), options.repeats),
            "images": (static(device, 60, (32, 3, 224, 224)), options.repeats // 5),
            "step": (step(program), options.repeats),
            "generate": (generate(model), max(options.repeats // 20, 3)),
        }
        if options.profile:
            call, repeats = calls[options.profile]
            profile(call, repeats)
            return
        print(f"{device.info}; the best tenth, µs\n{'':12}{'dispatches':>12}{'start':>8}{'whole':>8}")
        for name, (call, repeats) in calls.items():
            for _ in range(10):
                call()
            before = device.counters.snapshot()
            times = [call() for _ in range(repeats)]
            done = device.counters.snapshot().since(before)
            if done.buffers_created or done.bind_groups_created or done.pipelines_created:
                raise SystemExit(f"{name} creates something: {done}")
            start, whole = (f"{sorted(column)[repeats // 10] * 1e6:8.0f}" for column in zip(*times))
            print(f"{name:12}{done.dispatches // max(done.submits, 1):12}{start}{whole}")


def profile(call: Call, repeats: int) -> None:
    call()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(repeats):
        call()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
