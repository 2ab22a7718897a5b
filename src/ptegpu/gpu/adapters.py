"""Which GPUs and which engines there are, and which are meant; sets up the Vulkan loader so that they are found.

`adapters()` lists, `choose()` picks, `find()` picks an engine too. Where nothing is found, `NoAdapter` says which
package to install. An engine's library is imported when it is first asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

from ..errors import InvalidInput, NoAdapter
from ..plan.target import Kind
from . import loader, threads
from .webgpu import WebGPU

EngineName = Literal["wgpu", "dawn"]
Engine = Literal["auto", "wgpu", "dawn"]
PACKAGES: dict[EngineName, tuple[str, str]] = {  # what is imported, what is installed
    "wgpu": ("wgpu", "'wgpu==0.32.*'"),
    "dawn": ("wgpudawn", "'ptegpu[dawn]'"),
}
BACKENDS = {"darwin": ["Metal"], "win32": ["Vulkan", "DX12"]}  # elsewhere Vulkan alone

_PREFERENCE: tuple[Kind, ...] = ("discrete", "integrated", "software")
_KINDS: dict[str, Kind] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software"}
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel", 0x13B5: "Arm", 0x5143: "Qualcomm", 0x106B: "Apple"}


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A GPU as an engine sees it. `features` and `limits` carry WebGPU's names as wgpu-py spells them."""

    index: int
    name: str
    backend: str
    type: Kind
    vendor: str
    driver: str
    features: frozenset[str]
    limits: Mapping[str, int]
    twin: int = 0  # its number among those of the same name and backend, in the driver's order
    engine: EngineName = "wgpu"
    matrices: tuple[str, ...] = ()  # see `Target.matrices`

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.type}, {self.backend})"

    @property
    def place(self) -> str:
        """Describe where something ran, for people."""
        return f"{self.name} ({self.type}, {self.backend} through {self.engine})"

    @property
    def record(self) -> dict[str, str | int]:
        """Describe where something ran, for programs."""
        return {name: getattr(self, name) for name in ("index", "name", "type", "backend", "engine")}


def check_engine(engine: str) -> None:
    """Raise InvalidInput unless `engine` is the name of an engine, or "auto"."""
    if engine not in ("auto", *PACKAGES):
        raise InvalidInput(f'engine is "auto", "wgpu" or "dawn", not {engine!r}')


def installed(engine: EngineName) -> bool:
    """Return whether an engine's package is installed, without importing it."""
    return find_spec(PACKAGES[engine][0]) is not None


def library(engine: EngineName) -> type[WebGPU]:
    """Import an engine; raise NoAdapter if its package is not installed."""
    if not installed(engine):
        package, install = PACKAGES[engine]
        raise NoAdapter(f"{package} is not installed. Run: pip install {install}")
    if engine == "dawn":
        from .dawn import Dawn

        return Dawn
    from .wgpu_native import WgpuNative

    return WgpuNative


@cache
def native_adapters(engine: EngineName) -> tuple[Any, ...]:
    """Set up the loader and enumerate the adapter objects of an engine's package, once per process."""
    loader.configure()
    return _enumerate(engine)


def said(engine: EngineName) -> list[str]:
    """Return what an engine wrote while it looked for adapters: why it refuses one."""
    return list(library(engine).said) if installed(engine) else []


def native_adapter(info: AdapterInfo) -> Any:
    """Return the adapter object to open a device of."""
    found = _enumerate(info.engine) if library(info.engine).once else native_adapters(info.engine)
    return found[info.index]


def _enumerate(engine: EngineName) -> tuple[Any, ...]:
    return tuple(library(engine).adapters(BACKENDS.get(sys.platform, ["Vulkan"])))


def adapters(engine: EngineName = "wgpu") -> list[AdapterInfo]:
    """List the adapters that an engine sees, in the order that an index given as `device` counts."""
    return threads.opening().do(lambda: _infos(engine))


def _infos(engine: EngineName) -> list[AdapterInfo]:
    api, found = library(engine), list[AdapterInfo]()
    for index, adapter in enumerate(native_adapters(engine)):
        info = _info(index, adapter, engine, api.matrices(adapter))
        twins = sum((other.name, other.backend) == (info.name, info.backend) for other in found)
        found.append(replace(info, twin=twins))
    return found


def find(device: int | str = "auto", engine: Engine = "auto") -> AdapterInfo:
    """Find the adapter for `device` and `engine`. `PTEGPU_ENGINE` stands in for "auto".

    Auto is Dawn where it is installed, sees the adapter and offers matrices, and wgpu-native elsewhere. An index then
    counts wgpu-native's adapters; without one, Dawn is asked first, and wgpu-native need not start.
    """
    if engine == "auto":
        engine = os.environ.get("PTEGPU_ENGINE") or "auto"  # type: ignore[assignment]
    check_engine(engine)
    if engine == "dawn" and not adapters(engine):
        raise NoAdapter("Dawn finds no adapter that it accepts; `ptegpu doctor` shows what it says, and the others")
    if engine != "auto":
        return choose(adapters(engine), device)
    if not installed("dawn"):
        return choose(adapters(), device)
    if not isinstance(_meant(device), int) and (there := adapters("dawn")):
        with suppress(NoAdapter):
            info = choose(there, device)
            if info.matrices:
                return info
    info = choose(adapters(), device)
    me = (info.name, info.backend, info.twin)
    return next((a for a in adapters("dawn") if (a.name, a.backend, a.twin) == me and a.matrices), info)


def choose(infos: Sequence[AdapterInfo], device: int | str = "auto") -> AdapterInfo:
    """Choose an adapter by `device`: "auto", an index, or part of a name. `PTEGPU_DEVICE` stands in for "auto"."""
    if not infos:
        raise NoAdapter(loader.diagnosis())
    device = _meant(device)
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


def _meant(device: int | str) -> int | str:
    if device == "auto":
        device = os.environ.get("PTEGPU_DEVICE") or "auto"
    return int(device) if isinstance(device, str) and device.isdecimal() else device


def _info(index: int, adapter: Any, engine: EngineName, matrices: tuple[str, ...]) -> AdapterInfo:
    said = adapter.info
    return AdapterInfo(
        index=index,
        name=said["device"],
        backend=said["backend_type"],
        type=_KINDS.get(said["adapter_type"], "integrated"),
        vendor=_VENDORS.get(said["vendor_id"], said["vendor"]),
        driver=said["description"],
        features=frozenset("subgroups" if name == "subgroup" else name for name in adapter.features),
        limits=dict(adapter.limits),
        engine=engine,
        matrices=matrices,
    )
