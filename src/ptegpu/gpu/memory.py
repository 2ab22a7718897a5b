"""How much memory an adapter still has: its own, as Vulkan reports it, or the host's, if the adapter shares that."""

from __future__ import annotations

from pathlib import Path

from . import vulkan
from .adapters import AdapterInfo


def available_bytes(info: AdapterInfo) -> int | None:
    """Bytes that new buffers of an adapter may take; None when that is unknown."""
    if info.type != "discrete":
        return host_available_bytes(Path("/proc/meminfo"))
    return vulkan.available_bytes(info.name, info.twin) if info.backend == "Vulkan" else None


def host_available_bytes(meminfo: Path) -> int | None:
    """Linux's estimate of what can be allocated without swapping."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
