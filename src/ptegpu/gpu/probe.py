"""What WebGPU does not report: how much memory an adapter has left, and the subgroup size of a device.

Free memory is the adapter's own, as Vulkan reports it, or the host's, if the adapter shares that. The subgroup size is
found by running a kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..plan.plan import Kernel
from . import vulkan
from .adapters import AdapterInfo
from .recorder import Steps
from .submit import submit

if TYPE_CHECKING:
    from .device import Device

_GROUPS = 2


def available_bytes(info: AdapterInfo) -> int | None:
    """Return the bytes that new buffers of an adapter may take; None when that is unknown."""
    if info.type != "discrete":
        return host_available_bytes(Path("/proc/meminfo"))
    return vulkan.available_bytes(info.name, info.twin) if info.backend == "Vulkan" else None


def host_available_bytes(meminfo: Path) -> int | None:
    """Return Linux's estimate of what can be allocated without swapping."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def subgroup_size(device: Device) -> int:
    """Return the size that every subgroup has; 0 when it varies."""
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
        submit(device, recorder, [sizes])
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
