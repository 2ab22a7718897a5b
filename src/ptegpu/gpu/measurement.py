"""Figures of a device, measured: loads that keep a GPU busy, to raise its clocks and to find what it can do at most."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from ..plan.plan import ALIGN, Binding, Buffer, Kernel, Plan, PlannedDispatch, fixed, fold, plain
from ..plan.target import DeviceClass, Kind, Target
from . import discovery
from .device import Device
from .session import Session
from .timing import pass_time

ROUNDS = 3
_DISPATCHES = 64
_MEMORY_SHARE = 8  # each of two buffers may take 1/8 of the free memory
_SHORTEST = 1e-9  # seconds: a coarse clock may show none
_CHAINS = 8  # independent vec4 sums of each invocation, so that no instruction waits for another
_LINKS = 8  # fma of each chain in one turn of the loop


class LoadSizes(NamedTuple):
    """The amount of work of each load, which takes milliseconds."""

    seconds: float  # of load until a GPU leaves its idle clocks
    copied: int  # bytes; more than any cache holds
    groups: int
    turns: int
    turns_single: int  # of a single workgroup


SIZES: dict[Kind, LoadSizes] = {
    "discrete": LoadSizes(0.2, 256 << 20, 4096, 128, 1024),
    "integrated": LoadSizes(0.2, 256 << 20, 1024, 64, 512),
    "software": LoadSizes(0.0, 8 << 20, 64, 64, 256),  # a CPU needs no load
}


def measure(device: Device, *, keep: bool = False) -> DeviceClass:
    """Return the class of a device, measured once per device within some tenths of a second.

    With `keep`, save it on disk; later processes make their plans for it.
    """
    with device.lock:
        measured = device.measured = device.measured or _measure(device)
        if keep:
            discovery.save_class(device.info, measured)
        return measured


def _measure(device: Device) -> DeviceClass:
    """Run four loads: a copy of more than any cache holds; multiply-adds in registers; the same in a single workgroup,
    which is slower by the number of units; dispatches that do next to nothing.
    """
    target, sizes = device.target, SIZES[device.target.device_class.name]
    copy = copying(target, _copy_bytes(device))
    load = arithmetic(target, sizes.groups, sizes.turns)
    single = arithmetic(target, 1, sizes.turns_single)
    tiny = arithmetic(target, 1, 1)
    (family,) = tiny.families
    dispatches = replace(tiny, families=(replace(family, steps=family.steps * _DISPATCHES),))
    warm(device)
    try:
        flops = plain(load.dispatches[0].flops) / best_time(device, load)
        return DeviceClass(
            device.info.type,
            bandwidth=copy.dispatches[0].nbytes / best_time(device, copy),
            flops=flops,
            dispatch_seconds=best_time(device, dispatches) / _DISPATCHES,
            units=max(1, round(flops * best_time(device, single) / plain(single.dispatches[0].flops))),
            measured=True,
        )
    finally:
        device.pool.clear()  # its buffers are so large that they leave no room for others


def _copy_bytes(device: Device) -> int:
    nbytes = SIZES[device.target.device_class.name].copied
    limits = [nbytes, device.target.max_binding_bytes, device.target.max_buffer_bytes]
    free = device.available_bytes()
    if free is not None:
        limits.append(max(free // _MEMORY_SHARE, 1 << 20))
    return min(limits) // ALIGN * ALIGN


def best_time(device: Device, plan: Plan) -> float:
    """Return the seconds of the fastest round, without the first."""
    with Session(device) as session:
        loaded = session.prepare(plan)
        return max(_SHORTEST, min([pass_time(session, loaded, []) for _ in range(ROUNDS + 1)][1:]))


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
    dispatch = PlannedDispatch(0, bindings, grid, "copying", read_bytes=nbytes, write_bytes=nbytes)
    buffers = (Buffer("x", nbytes, "temp"), Buffer("y", nbytes, "temp"))
    return fixed("copying", buffers, (kernel,), (dispatch,))


def arithmetic(target: Target, groups: int, turns: int) -> Plan:
    """Plan f32 multiply-adds in registers; each invocation stores its result, so no compiler can drop them."""
    workgroup = target.workgroup(256)
    chains = [f"a{n}" for n in range(_CHAINS)]
    # The factor is 0.5 plus a zero from a buffer, which no compiler can know.
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
    dispatch = PlannedDispatch(0, bindings, (groups, 1), "arithmetic", read_bytes=16, write_bytes=nbytes, flops=flops)
    buffers = (Buffer("zeros", 16, "state"), Buffer("y", nbytes, "temp"))
    return fixed("arithmetic", buffers, (kernel,), (dispatch,))
