"""Vulkan: its loader, set up before an engine starts it, and what WebGPU does not report about a GPU.

Compute images often carry NVIDIA's libraries without the file that registers them; `configure` writes that file. It
changes nothing that an administrator or the user has set up.
"""

from __future__ import annotations

import atexit
import ctypes
import ctypes.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, MutableMapping
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

INSTALL = "apt-get install libvulkan1 mesa-vulkan-drivers"

_DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_SYSTEM_CONFIG = "/etc"
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
)
_MAX_HEAPS, _MAX_TYPES = 16, 32
_DEVICE_LOCAL = 1
_APPLICATION, _INSTANCE = 0, 1  # VkStructureType
_PROPERTIES, _MEMORY_PROPERTIES, _SUBGROUP_SIZES, _MEMORY_BUDGET = 1000059001, 1000059006, 1000225000, 1000237000
_VULKAN_1_1 = 1 << 22 | 1 << 12


def configure(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make the loader find the drivers. Call this before an engine makes its instance; later calls change nothing."""
    if sys.platform != "linux":
        return
    if not environ.get("XDG_RUNTIME_DIR"):
        environ.setdefault("NODEVICE_SELECT", "1")  # Mesa's device-select layer complains on stderr without a session
    load_loader()
    if any(environ.get(name) for name in _DRIVER_VARIABLES) or environ.get("VK_ADD_DRIVER_FILES"):
        return
    registered = icd_files(environ)
    nvidia = _find("libEGL_nvidia.so.0")
    if nvidia is None or any("nvidia" in file.name for file in registered):
        return
    icd = str(_write_icd(nvidia))
    for name in ("VK_ADD_DRIVER_FILES",) if registered else _DRIVER_VARIABLES:
        environ[name] = icd


def load_loader() -> bool:
    """Load the Vulkan loader so that engines find it by its name; return whether that worked."""
    for name in (lambda: "libvulkan.so.1", lambda: _find("libvulkan.so.1"), lambda: ctypes.util.find_library("vulkan")):
        try:
            ctypes.CDLL(str(name()), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False


def icd_files(environ: MutableMapping[str, str] = os.environ) -> list[Path]:
    """List the files that register Vulkan drivers, in the folders that the loader reads."""
    explicit = [environ[name] for name in _DRIVER_VARIABLES if environ.get(name)]
    if explicit:
        return _json_files(Path(part) for part in explicit[0].split(os.pathsep))
    home = Path(environ.get("HOME") or "/")
    config = [environ.get("XDG_CONFIG_HOME") or str(home / ".config"), *_split(environ, "XDG_CONFIG_DIRS", "/etc/xdg")]
    data = [
        environ.get("XDG_DATA_HOME") or str(home / ".local/share"),
        *_split(environ, "XDG_DATA_DIRS", "/usr/local/share:/usr/share"),
    ]
    folders = [Path(folder) / "vulkan/icd.d" for folder in (*config, _SYSTEM_CONFIG, *data)]
    added = [Path(part) for part in _split(environ, "VK_ADD_DRIVER_FILES", "")]
    return _json_files([*added, *folders])


def diagnosis(environ: MutableMapping[str, str] = os.environ) -> str:
    """Explain why there is no adapter, and which command to run."""
    if sys.platform != "linux":
        return "No GPU adapter was found; install or update the graphics driver"
    if not load_loader():
        return f"No GPU adapter: the Vulkan loader (libvulkan.so.1) is missing. Run: {INSTALL}"
    files = icd_files(environ)
    if not files:
        return f"No GPU adapter: the Vulkan loader is there, but no driver is registered with it. Run: {INSTALL}"
    names = ", ".join(file.name for file in files)
    return f"No GPU adapter: the registered Vulkan drivers ({names}) find no GPU. For a software adapter run: {INSTALL}"


def _find(library: str) -> Path | None:
    folders = [*_split(os.environ, "LD_LIBRARY_PATH", ""), str(Path(sys.prefix) / "lib"), *_LIBRARY_FOLDERS]
    return next((path for folder in folders if (path := Path(folder) / library).exists()), None)


def _split(environ: MutableMapping[str, str], name: str, default: str) -> list[str]:
    return [part for part in (environ.get(name) or default).split(os.pathsep) if part]


def _json_files(places: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for place in places:
        files += sorted(place.glob("*.json")) if place.is_dir() else [place] if place.is_file() else []
    return files


def _write_icd(driver: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ptegpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "nvidia_icd.json"
    icd = {"library_path": str(driver), "api_version": "1.3.290"}
    file.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return file


class _Chained(Structure):
    _fields_: ClassVar[Any] = (("type", c_uint32), ("next", c_void_p))


class _Application(_Chained):
    _fields_ = (("name", c_char_p), ("version", c_uint32), ("engine", c_char_p), ("versions", c_uint32 * 2))


class _InstanceInfo(_Chained):  # ends with no layers and no extensions
    _fields_ = (("flags", c_uint32), ("application", POINTER(_Application)), ("names", c_uint64 * 4))


class _Properties(_Chained):  # VkPhysicalDeviceProperties2, with room for the limits and sparse properties
    _fields_ = (("numbers", c_uint32 * 5), ("name", c_char * 256), ("room", c_uint8 * 1024))


class _SubgroupSizes(_Chained):  # VkPhysicalDeviceSubgroupSizeControlProperties
    _fields_ = (("smallest", c_uint32), ("largest", c_uint32), ("most_per_workgroup", c_uint32), ("stages", c_uint32))


class _Heap(Structure):
    _fields_ = (("size", c_uint64), ("flags", c_uint32))


class _Budget(_Chained):  # VkPhysicalDeviceMemoryBudgetPropertiesEXT
    _fields_ = (("budget", c_uint64 * _MAX_HEAPS), ("usage", c_uint64 * _MAX_HEAPS))


class _Memory(_Chained):  # VkPhysicalDeviceMemoryProperties2
    _fields_ = (("types", c_uint32 * (1 + 2 * _MAX_TYPES)), ("heaps", c_uint32), ("heap", _Heap * _MAX_HEAPS))


def available_bytes(name: str, twin: int) -> int | None:
    """Return the bytes that the driver still grants of a GPU's own memory; None if it does not report them.

    WebGPU reports neither the UUID of a GPU nor its bus address. So the GPU is identified by its name and, among GPUs
    of the same name, by its number: wgpu lists them in Vulkan's order.
    """
    gpu = _gpu(name, twin)
    if gpu is None:
        return None
    budget = _Budget(_MEMORY_BUDGET)
    memory = _Memory(_MEMORY_PROPERTIES, ctypes.cast(byref(budget), c_void_p))
    _loader().vkGetPhysicalDeviceMemoryProperties2(gpu, byref(memory))
    local = [n for n in range(memory.heaps) if memory.heap[n].flags & _DEVICE_LOCAL and budget.budget[n]]
    return max((budget.budget[n] - budget.usage[n] for n in local), default=None)


def subgroup_range(name: str, twin: int) -> tuple[int, int]:
    """Return the smallest and largest subgroup size of a GPU; (0, 0) if the driver does not report them."""
    gpu = _gpu(name, twin)
    if gpu is None:
        return 0, 0
    sizes = _SubgroupSizes(_SUBGROUP_SIZES)
    properties = _Properties(_PROPERTIES, ctypes.cast(byref(sizes), c_void_p))
    _loader().vkGetPhysicalDeviceProperties2(gpu, byref(properties))
    return sizes.smallest, sizes.largest


@cache
def _gpu(name: str, twin: int) -> c_void_p | None:
    """Return number `twin` of the physical devices of that name."""
    matches = []
    for gpu in _gpus():
        properties = _Properties(_PROPERTIES)
        _loader().vkGetPhysicalDeviceProperties2(gpu, byref(properties))
        if properties.name.decode(errors="replace") == name:
            matches.append(gpu)
    return matches[twin] if twin < len(matches) else None


@cache
def _gpus() -> list[c_void_p]:
    """List the physical devices of our own Vulkan instance, which lives as long as the process."""
    vulkan = _loader()
    application = _Application(_APPLICATION, versions=(0, _VULKAN_1_1))
    info = _InstanceInfo(_INSTANCE, application=ctypes.pointer(application))
    instance, count = c_void_p(), c_uint32()
    if vulkan is None or vulkan.vkCreateInstance(byref(info), None, byref(instance)) != 0:
        return []
    vulkan.vkEnumeratePhysicalDevices(instance, byref(count), None)
    gpus = (c_void_p * count.value)()
    vulkan.vkEnumeratePhysicalDevices(instance, byref(count), gpus)
    return [c_void_p(gpu) for gpu in gpus]


@cache
def _loader() -> Any:
    try:
        return ctypes.CDLL("vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1")
    except OSError:
        return None
