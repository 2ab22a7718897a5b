"""How much memory an adapter still has. WebGPU does not say; where the GPU's memory is the host's, the system does."""

from __future__ import annotations

from pathlib import Path

from .adapters import AdapterInfo


def available_bytes(info: AdapterInfo) -> int | None:
    """Bytes that new buffers may take; None when that is unknown."""
    return None if info.type == "discrete" else host_available_bytes(Path("/proc/meminfo"))


def host_available_bytes(meminfo: Path) -> int | None:
    """Linux's estimate of what can be allocated without swapping."""
    if not meminfo.exists():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
