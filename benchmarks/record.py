"""What recording a plan costs per dispatch: by ptegpu's raw calls and by wgpu-py's own path, in the same run.

    python benchmarks/record.py [--dispatches 500] [--repeats 100] [--device auto]

Both record the same steps (pipeline when it changes, bind group, dispatch) into one compute pass. "record" is from
the new encoder to the end of the pass; "submit" makes the command buffer of it and hands it over, inside wgpu-native,
and is the same work for both. The paths take turns, with the GPU idle, and the best of the repeats counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import wgpu

from ptegpu.gpu import Device, Prepared, Session, open_device
from ptegpu.gpu.adapters import native_adapters
from ptegpu.gpu.recorder import Step
from ptegpu.gpu.submit import Commands, submit
from ptegpu.plan.plan import Binding, Buffer, Dispatch, Kernel, Plan, fixed

WGSL = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {{
    y[id.x] = x[id.x] + {addend};
}}
"""
NBYTES = 256

Path = Callable[[], tuple[float, float]]


def chain(dispatches: int) -> Plan:
    """A plan that adds 1 and 2 in turn, from one of two buffers to the other."""
    kernels = tuple(Kernel(f"add_{n}", WGSL.format(addend=f"{n}.0"), ("read", "write"), 64) for n in (1, 2))
    buffers = tuple(Buffer(name, NBYTES, "temp") for name in ("even", "odd"))
    steps = tuple(
        Dispatch(n % 2, (Binding(n % 2, 0, NBYTES), Binding(1 - n % 2, 0, NBYTES)), (1, 1), f"add {n}")
        for n in range(dispatches)
    )
    return fixed("chain", buffers, kernels, steps)


def raw_path(device: Device, prepared: Prepared, steps: list[Step]) -> tuple[float, float]:
    start = time.perf_counter()
    with device.api.record() as recorder:
        recorder.compute(steps)
        commands = Commands(recorder, prepared.buffers)
    recorded = time.perf_counter()
    submit(device, commands)
    submitted = time.perf_counter()
    device.wait()
    return recorded - start, submitted - recorded


class WgpuPy:
    """The same plan with objects of wgpu-py, on a device of its own."""

    def __init__(self, adapter: Any, plan: Plan) -> None:
        self.device = device = adapter.request_device_sync()
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
        self.buffers = buffers = [device.create_buffer(size=buffer.nbytes, usage=usage) for buffer in plan.buffers]
        modules = [device.create_shader_module(code=kernel.wgsl) for kernel in plan.kernels]
        pipelines = [device.create_compute_pipeline(layout="auto", compute={"module": m}) for m in modules]
        self.steps = []
        for dispatch in plan.dispatches:
            places = [{"buffer": buffers[b.buffer], "offset": b.offset, "size": b.nbytes} for b in dispatch.bindings]
            entries = [{"binding": number, "resource": place} for number, place in enumerate(places)]
            pipeline = pipelines[dispatch.kernel]
            group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
            self.steps.append((pipeline, group, *dispatch.grid))

    def path(self) -> tuple[float, float]:
        start = time.perf_counter()
        encoder = self.device.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        last = None
        for pipeline, group, x, y in self.steps:
            if pipeline is not last:
                compute_pass.set_pipeline(pipeline)
            compute_pass.set_bind_group(0, group)
            compute_pass.dispatch_workgroups(x, y)
            last = pipeline
        compute_pass.end()
        recorded = time.perf_counter()
        self.device.queue.submit([encoder.finish()])
        submitted = time.perf_counter()
        self.device.queue.read_buffer(self.buffers[0])  # waits
        return recorded - start, submitted - recorded


def best(repeats: int, *paths: Path) -> list[tuple[float, float]]:
    """Seconds of recording and of submitting, the least of each, for each path."""
    times: list[list[tuple[float, float]]] = [[] for _ in paths]
    for _ in range(repeats):
        for path, seen in zip(paths, times):
            seen.append(path())
    return [(min(t[0] for t in seen), min(t[1] for t in seen)) for seen in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dispatches", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = open_device(options.device, engine="wgpu")
    with Session(device) as session:
        prepared = session.prepare(chain(options.dispatches))
        other = WgpuPy(native_adapters("wgpu")[device.info.index], prepared.plan)
        steps = session.look(prepared, []).ready.steps
        raw, py = best(options.repeats, lambda: raw_path(device, prepared, steps), other.path)
    each = 1e6 / options.dispatches
    rows = {"ptegpu": [*raw, sum(raw)], "wgpu-py": [*py, sum(py)]}
    print(f"{device.info}, {options.dispatches} dispatches, best of {options.repeats}; µs per dispatch")
    print(f"{'':10}{'record':>8}{'submit':>8}{'both':>8}")
    for name, seconds in rows.items():
        print(f"{name:10}" + "".join(f"{second * each:8.2f}" for second in seconds))
    ratios = [ours / theirs for ours, theirs in zip(rows["ptegpu"], rows["wgpu-py"])]
    print(f"{'ratio':10}" + "".join(f"{ratio:8.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
