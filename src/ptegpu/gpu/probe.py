"""The subgroup size of a device, found by running a kernel: WebGPU does not report it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plan.plan import Kernel
from . import vulkan
from .recorder import Steps
from .submit import Commands, submit

if TYPE_CHECKING:
    from .device import Device

_GROUPS = 2


def subgroup_size(device: Device) -> int:
    """The size every subgroup has; 0 when it varies."""
    if device.info.backend == "Vulkan":
        smallest, largest = vulkan.subgroup_range(device.info.name, device.info.twin)
        if smallest < largest:
            return 0  # the driver chooses per pipeline, so that no probe speaks for another kernel
    widest = device.target.workgroup(device.target.max_invocations)
    found = {size for workgroup in (64, widest) for size in _sizes(device, workgroup)}
    return found.pop() if len(found) == 1 else 0


def _sizes(device: Device, workgroup: int) -> set[int]:
    pipeline = device.pipeline(kernel(workgroup))
    nbytes = _GROUPS * workgroup * 4
    sizes = device.buffer("subgroup sizes", nbytes, "storage")
    group = device.bind_group(pipeline, [(sizes, 0, nbytes)])
    with device.api.record() as recorder:
        recorder.compute(Steps([pipeline.handle], [group], [_GROUPS], [1]))
        commands = Commands(recorder, [sizes])
    submit(device, commands)
    found = set(memoryview(device.read(sizes, nbytes)).cast("I"))
    device.release(sizes)
    return found


def kernel(workgroup: int) -> Kernel:
    wgsl = f"""
@group(0) @binding(0) var<storage, read_write> sizes: array<u32>;
@compute @workgroup_size({workgroup})
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(subgroup_size) size: u32) {{
    sizes[id.x] = size;
}}
"""
    return Kernel(f"subgroup_size_{workgroup}", wgsl, ("write",), workgroup, needs=("subgroups",))
