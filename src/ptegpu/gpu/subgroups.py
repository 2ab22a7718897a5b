"""The size of an adapter's subgroups, found by a probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plan.plan import Kernel
from . import vulkan
from .recorder import Steps

if TYPE_CHECKING:
    from .device import Device

_GROUPS = 2  # workgroups of the probe


def subgroup_size(device: Device) -> int:
    """Return the size of every subgroup, found by running a kernel; 0 if it varies."""
    if device.info.backend == "Vulkan":
        smallest, largest = vulkan.subgroup_range(device.info.name, device.info.twin)
        if smallest < largest:
            return 0  # the driver chooses per pipeline, so a probe says nothing about other kernels
    widest = device.target.workgroup(device.target.max_invocations)
    sizes = {size for workgroup in (64, widest) for size in _sizes(device, workgroup)}
    return sizes.pop() if len(sizes) == 1 else 0


def _sizes(device: Device, workgroup: int) -> set[int]:
    pipeline = device.pipeline(subgroup_probe(workgroup))
    nbytes = _GROUPS * workgroup * 4
    buffer = device.buffer("subgroup sizes", nbytes, "storage")
    group = device.bind_group(pipeline, [(buffer, 0, nbytes)])
    with device.api.record() as recorder:
        recorder.compute(Steps([pipeline.handle], [group], [_GROUPS], [1]))
        device.submit(recorder, [buffer])
    sizes = set(memoryview(device.read(buffer, nbytes)).cast("I"))
    device.release(buffer)
    return sizes


def subgroup_probe(workgroup: int) -> Kernel:
    """Return a kernel in which each invocation writes the size of its subgroup."""
    wgsl = f"""
@group(0) @binding(0) var<storage, read_write> sizes: array<u32>;
@compute @workgroup_size({workgroup})
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(subgroup_size) size: u32) {{
    sizes[id.x] = size;
}}
"""
    return Kernel(f"subgroup_size_{workgroup}", wgsl, ("write",), workgroup, needs=("subgroups",))
