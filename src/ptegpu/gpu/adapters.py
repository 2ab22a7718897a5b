"""Which GPUs there are and which one is meant; sets up the Vulkan loader so that they are found.

`adapters()` lists, `choose()` picks. Where nothing is found, `NoAdapter` says which package to install.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..errors import NoAdapter
from ..plan.target import Kind
from . import loader

BACKENDS = {"darwin": ["Metal"], "win32": ["Vulkan", "DX12"]}  # elsewhere Vulkan alone

_PREFERENCE: tuple[Kind, ...] = ("discrete", "integrated", "software")
_KINDS: dict[str, Kind] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software"}
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel", 0x13B5: "Arm", 0x5143: "Qualcomm", 0x106B: "Apple"}


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A GPU as wgpu sees it. `features` and `limits` carry wgpu's names."""

    index: int
    name: str
    backend: str
    type: Kind
    vendor: str
    driver: str
    features: frozenset[str]
    limits: Mapping[str, int]
    twin: int = 0  # its number among those of the same name and backend, in the driver's order

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.type}, {self.backend})"


@cache
def native_adapters() -> tuple[Any, ...]:
    """wgpu-py's adapter objects, enumerated once per process, after the loader is set up."""
    loader.configure()
    import wgpu
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    with suppress(RuntimeError):  # another user of wgpu in this process has made its instance already
        set_instance_extras(backends=BACKENDS.get(sys.platform, ["Vulkan"]))
    return tuple(wgpu.gpu.enumerate_adapters_sync())


def adapters() -> list[AdapterInfo]:
    """Every adapter of this machine, in the order that an index given as `device` counts."""
    found: list[AdapterInfo] = []
    for index, adapter in enumerate(native_adapters()):
        info = _info(index, adapter)
        twins = sum((other.name, other.backend) == (info.name, info.backend) for other in found)
        found.append(replace(info, twin=twins))
    return found


def choose(infos: Sequence[AdapterInfo], device: int | str = "auto") -> AdapterInfo:
    """The adapter meant by `device`: "auto", an index, or part of a name. `PTEGPU_DEVICE` stands in for "auto"."""
    if not infos:
        raise NoAdapter(loader.diagnosis())
    if device == "auto":
        device = os.environ.get("PTEGPU_DEVICE") or "auto"
    if isinstance(device, str) and device.isdecimal():
        device = int(device)
    if device == "auto":
        fitting = list(infos)
    elif isinstance(device, int):
        fitting = [info for info in infos if info.index == device]
    else:
        fitting = [info for info in infos if device.lower() in info.name.lower()]
    if not fitting:
        wanted = f"index {device}" if isinstance(device, int) else f"{device!r} in its name"
        raise NoAdapter(f"No adapter has {wanted}. There is {'; '.join(map(str, infos))}")
    return min(fitting, key=lambda info: (_PREFERENCE.index(info.type), info.index))


def _info(index: int, adapter: Any) -> AdapterInfo:
    said = adapter.info
    return AdapterInfo(
        index=index,
        name=said["device"],
        backend=said["backend_type"],
        type=_KINDS.get(said["adapter_type"], "integrated"),
        vendor=_VENDORS.get(said["vendor_id"], said["vendor"]),
        driver=said["description"],
        features=frozenset(adapter.features),
        limits=dict(adapter.limits),
    )
