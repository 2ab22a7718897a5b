"""The GPUs and engines of this machine: `adapters` lists, `choose_adapter` picks, `find_adapter` also picks an engine.

If there is no adapter, `NoAdapter` names the package to install. An engine's library is imported when it is first asked
for adapters. The class of an adapter is measured once and saved in the user's cache folder, or assumed from its type.
The folder also has what `residency.py` finds out. `PTEGPU_CACHE` names another one; if it is `off`, nothing is saved or
read.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .. import files
from ..errors import DeviceError, InvalidInput, NoAdapter
from ..plan.target import CLASSES, DeviceClass, Kind
from . import threads, vulkan

if TYPE_CHECKING:
    from .webgpu import WebGPU


EngineName = Literal["wgpu", "dawn"]
Engine = Literal["auto", "wgpu", "dawn"]
PACKAGES: dict[EngineName, tuple[str, str]] = {  # module, requirement
    "wgpu": ("wgpu", "'wgpu==0.32.*'"),
    "dawn": ("wgpudawn", "'ptegpu[dawn]'"),
}
BACKENDS = {"darwin": ["Metal"], "win32": ["Vulkan", "DX12"]}  # elsewhere Vulkan only
MAX_ENTRY = 1 << 16  # bytes of saved figures
EntryKey = list[str | int]  # what saved figures are valid for
VERSION = 1  # of the measurement; classes saved by other versions do not count

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
    twin: int = 0  # its number among adapters of the same name and backend, in the driver's order
    engine: EngineName = "wgpu"
    matrices: tuple[str, ...] = ()  # see `Target.matrices`

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.type}, {self.backend})"

    @property
    def place(self) -> str:
        """Describe the adapter for people."""
        return f"{self.name} ({self.type}, {self.backend} through {self.engine})"

    @property
    def record(self) -> dict[str, str | int]:
        """Describe the adapter for programs."""
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
    vulkan.configure()
    return _enumerate(engine)


def engine_messages(engine: EngineName) -> list[str]:
    """Return what an engine printed while it looked for adapters, such as why it refuses one."""
    return list(library(engine).messages) if installed(engine) else []


def native_adapter(info: AdapterInfo) -> Any:
    """Return the engine's object for an adapter."""
    objects = _enumerate(info.engine) if library(info.engine).once else native_adapters(info.engine)
    return objects[info.index]


def _enumerate(engine: EngineName) -> tuple[Any, ...]:
    return tuple(library(engine).adapters(BACKENDS.get(sys.platform, ["Vulkan"])))


def adapters(engine: EngineName = "wgpu") -> list[AdapterInfo]:
    """List the adapters that an engine sees; an index given as `device` counts in this order."""
    return threads.opening().do(lambda: _infos(engine))


def _infos(engine: EngineName) -> list[AdapterInfo]:
    api, infos = library(engine), list[AdapterInfo]()
    for index, adapter in enumerate(native_adapters(engine)):
        info = adapter.info
        name, backend = info["device"], info["backend_type"]
        infos.append(
            AdapterInfo(
                index=index,
                name=name,
                backend=backend,
                type=_KINDS.get(info["adapter_type"], "integrated"),
                vendor=_VENDORS.get(info["vendor_id"], info["vendor"]),
                driver=info["description"],
                features=frozenset("subgroups" if f == "subgroup" else f for f in adapter.features),
                limits=dict(adapter.limits),
                twin=sum((other.name, other.backend) == (name, backend) for other in infos),
                engine=engine,
                matrices=api.matrices(adapter),
            )
        )
    return infos


def find_adapter(device: int | str = "auto", engine: Engine = "auto") -> AdapterInfo:
    """Find the adapter for `device` and `engine`. `PTEGPU_ENGINE` replaces "auto".

    "auto" chooses Dawn if it is installed, sees the adapter and offers matrices, and wgpu-native otherwise. An index
    then counts wgpu-native's adapters. Without an index, Dawn is tried first, so wgpu-native need not start.
    """
    if engine == "auto":
        engine = os.environ.get("PTEGPU_ENGINE") or "auto"  # type: ignore[assignment]
    check_engine(engine)
    if engine == "dawn" and not adapters(engine):
        raise NoAdapter(
            "Dawn accepts no adapter of this machine; `ptegpu doctor` shows its messages and other adapters"
        )
    if engine != "auto":
        return choose_adapter(adapters(engine), device)
    if not installed("dawn"):
        return choose_adapter(adapters(), device)
    if not isinstance(_device_option(device), int) and (dawn := adapters("dawn")):
        with suppress(NoAdapter):
            info = choose_adapter(dawn, device)
            if info.matrices:
                return info
    info = choose_adapter(adapters(), device)
    same = (info.name, info.backend, info.twin)
    return next((a for a in adapters("dawn") if (a.name, a.backend, a.twin) == same and a.matrices), info)


def choose_adapter(infos: Sequence[AdapterInfo], device: int | str = "auto") -> AdapterInfo:
    """Choose an adapter by `device`: "auto", an index, or part of a name. `PTEGPU_DEVICE` replaces "auto"."""
    if not infos:
        raise NoAdapter(vulkan.diagnosis())
    device = _device_option(device)
    if device == "auto":
        matches = list(infos)
    elif isinstance(device, int):
        matches = [info for info in infos if info.index == device]
    else:
        matches = [info for info in infos if device.lower() in info.name.lower()]
    if not matches:
        criterion = f"index {device}" if isinstance(device, int) else f"{device!r} in its name"
        raise NoAdapter(f"No adapter has {criterion}. There is {'; '.join(map(str, infos))}")
    return min(matches, key=lambda info: (_PREFERENCE.index(info.type), info.index))


def _device_option(device: int | str) -> int | str:
    if device == "auto":
        device = os.environ.get("PTEGPU_DEVICE") or "auto"
    return int(device) if isinstance(device, str) and device.isdecimal() else device


def class_of(info: AdapterInfo) -> DeviceClass:
    """Return the class measured on an adapter, or the one assumed for its type if there is none."""
    with suppress(ValueError, LookupError, TypeError):
        return _read_class(read_entry("adapter", _key(info)), info)
    return CLASSES[info.type]


def save_class(info: AdapterInfo, measured: DeviceClass) -> None:
    """Save the class measured on an adapter."""
    save_entry("adapter", _key(info), asdict(measured))


def class_file(info: AdapterInfo) -> Path | None:
    """Return the file for the class of an adapter; None if nothing is to be saved."""
    return _entry_file("adapter", _key(info))


def save_entry(kind: str, key: EntryKey, figures: Mapping[str, Any]) -> None:
    """Save figures of an adapter; the key states what they are valid for."""
    path = _entry_file(kind, key)
    if path is not None:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.keep(path, json.dumps({"adapter": key, **figures}, indent=2).encode())


def remove_entry(kind: str, key: EntryKey) -> None:
    """Remove saved figures, if there are any."""
    path = _entry_file(kind, key)
    if path is not None:
        with _writing(path):
            path.unlink(missing_ok=True)


def read_entry(kind: str, key: EntryKey) -> dict[str, Any]:
    """Return saved figures; raise LookupError if there are none for this key."""
    path = _entry_file(kind, key)
    if path is not None:
        with suppress(DeviceError, OSError, ValueError, RecursionError):
            entry = json.loads(files.read_kept(path, DeviceError, MAX_ENTRY))
            if isinstance(entry, dict) and entry.pop("adapter", None) == key:
                return entry
    raise LookupError(kind)


def _entry_file(kind: str, key: EntryKey) -> Path | None:
    folder = files.cache_folder()
    return folder and folder / f"{kind}-{sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise DeviceError(f"{path} cannot be written ({e.strerror}): set PTEGPU_CACHE to another folder") from e


def _key(info: AdapterInfo) -> EntryKey:
    return [VERSION, info.name, info.backend, info.driver]


def _read_class(entry: Mapping[str, Any], info: AdapterInfo) -> DeviceClass:
    """Return a saved class; raise unless it was measured on an adapter of this type."""
    measured = DeviceClass(**{f.name: entry[f.name] for f in fields(DeviceClass)})
    figures = (measured.bandwidth, measured.flops, measured.dispatch_seconds)
    matches = (measured.name, measured.measured) == (info.type, True)
    counted = type(measured.units) is int and 0 < measured.units < 1 << 16
    if not (matches and counted and all(type(x) is float and 0 < x < math.inf for x in figures)):
        raise ValueError("not a measurement of this adapter")
    return measured


def available_bytes(info: AdapterInfo) -> int | None:
    """Return the bytes that new buffers of an adapter may take; None if that is unknown.

    This is the adapter's own free memory, as Vulkan reports it, or the host's if the adapter shares that.
    """
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
