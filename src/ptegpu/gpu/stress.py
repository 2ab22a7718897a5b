"""Work that keeps a GPU busy and nothing else: to raise its clocks, and to measure what it can do at most."""

from __future__ import annotations

import time
from typing import NamedTuple

from ..plan.plan import Binding, Buffer, Dispatch, Kernel, Plan, fixed, fold
from ..plan.target import Kind, Target
from .device import Device
from .session import Session

_CHAINS = 8  # independent sums of four in each invocation, so that none waits for the one before
_LINKS = 8  # fma of each chain in one turn of the loop


class Sizes(NamedTuple):
    """How much work a load is, so that it takes milliseconds."""

    seconds: float  # of load, after which a GPU has left its idle clocks
    copied: int  # bytes: more than any cache holds
    groups: int
    turns: int
    turns_alone: int  # of a single workgroup


SIZES: dict[Kind, Sizes] = {
    "discrete": Sizes(0.2, 256 << 20, 4096, 128, 1024),
    "integrated": Sizes(0.2, 256 << 20, 1024, 64, 512),
    "software": Sizes(0.0, 8 << 20, 64, 64, 256),  # a CPU needs no load
}


def warm(device: Device) -> None:
    """Run a load until the GPU's clocks are up."""
    sizes = SIZES[device.target.device_class.name]
    if not sizes.seconds:
        return
    with Session(device) as session:
        load = session.prepare(arithmetic(device.target, sizes.groups, sizes.turns // 2))
        end = time.perf_counter() + sizes.seconds
        while time.perf_counter() < end:
            session.run(load, [])
            device.wait()


def copying(target: Target, nbytes: int) -> Plan:
    """Plan a copy of `nbytes`, four floats per invocation."""
    workgroup = target.workgroup(256)
    wgsl = f"""
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
@compute @workgroup_size({workgroup})
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {{
    let i = (group.y * groups.x + group.x) * {workgroup}u + lane;
    if (i < arrayLength(&y)) {{ y[i] = x[i]; }}
}}
"""
    kernel = Kernel("copying", wgsl, ("read", "write"), workgroup)
    grid = fold(-(-nbytes // (16 * workgroup)), target.max_groups, kernel.name)
    bindings = (Binding(0, 0, nbytes), Binding(1, 0, nbytes))
    dispatch = Dispatch(0, bindings, grid, "copying", read_bytes=nbytes, write_bytes=nbytes)
    buffers = (Buffer("x", nbytes, "temp"), Buffer("y", nbytes, "temp"))
    return fixed("copying", buffers, (kernel,), (dispatch,))


def arithmetic(target: Target, groups: int, turns: int) -> Plan:
    """Plan f32 multiply-adds in registers; each invocation stores its result, so that none is left out."""
    workgroup = target.workgroup(256)
    chains = [f"a{n}" for n in range(_CHAINS)]
    # The factor is 0.5 plus what is read, zeros, so that no compiler can know it.
    wgsl = f"""
@group(0) @binding(0) var<storage, read> zeros: vec4f;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
@compute @workgroup_size({workgroup})
fn main(@builtin(global_invocation_id) id: vec3u) {{
    let factor = zeros + 0.5;
    let start = vec4f(f32(id.x), 0.0, 1.0, 2.0) + 1.0;
    {" ".join(f"var {a} = start + {n}.0;" for n, a in enumerate(chains))}
    for (var turn = 0u; turn < {turns}u; turn++) {{
        {" ".join(f"{a} = fma({a}, factor, start);" for _ in range(_LINKS) for a in chains)}
    }}
    y[id.x] = {" + ".join(chains)};
}}
"""
    kernel = Kernel("arithmetic", wgsl, ("read", "write"), workgroup)
    nbytes = 16 * groups * workgroup
    flops = 2 * 4 * _CHAINS * _LINKS * turns * groups * workgroup
    bindings = (Binding(0, 0, 16), Binding(1, 0, nbytes))
    dispatch = Dispatch(0, bindings, (groups, 1), "arithmetic", read_bytes=16, write_bytes=nbytes, flops=flops)
    buffers = (Buffer("zeros", 16, "state"), Buffer("y", nbytes, "temp"))
    return fixed("arithmetic", buffers, (kernel,), (dispatch,))
