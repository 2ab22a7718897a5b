"""What WebGPU does not report about a GPU, read from Vulkan directly: free memory, and the range of subgroup sizes."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, ClassVar

_MAX_HEAPS, _MAX_TYPES = 16, 32
_DEVICE_LOCAL = 1
_APPLICATION, _INSTANCE = 0, 1  # VkStructureType
_PROPERTIES, _MEMORY_PROPERTIES, _SUBGROUP_SIZES, _MEMORY_BUDGET = 1000059001, 1000059006, 1000225000, 1000237000
_VULKAN_1_1 = 1 << 22 | 1 << 12


class _Chained(Structure):
    _fields_: ClassVar[Any] = (("type", c_uint32), ("next", c_void_p))


class _Application(_Chained):
    _fields_ = (("name", c_char_p), ("version", c_uint32), ("engine", c_char_p), ("versions", c_uint32 * 2))


class _InstanceInfo(_Chained):  # ends with no layers and no extensions
    _fields_ = (("flags", c_uint32), ("application", POINTER(_Application)), ("names", c_uint64 * 4))


class _Properties(_Chained):  # VkPhysicalDeviceProperties2, the limits and sparse properties as mere room
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
    """Return what the driver still grants of a GPU's own memory; None when it does not say.

    WebGPU tells of a GPU neither its UUID nor its place on the bus. So it is found by its name and, among GPUs of the
    same name, by its number: wgpu lists them in Vulkan's order.
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
    """Return the smallest and largest subgroup a GPU forms; (0, 0) when it does not say."""
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
    found = []
    for gpu in _gpus():
        properties = _Properties(_PROPERTIES)
        _loader().vkGetPhysicalDeviceProperties2(gpu, byref(properties))
        if properties.name.decode(errors="replace") == name:
            found.append(gpu)
    return found[twin] if twin < len(found) else None


@cache
def _gpus() -> list[c_void_p]:
    """List the physical devices, from an instance of our own that lives as long as the process."""
    vulkan = _loader()
    application = _Application(_APPLICATION, versions=(0, _VULKAN_1_1))
    wanted = _InstanceInfo(_INSTANCE, application=ctypes.pointer(application))
    instance, count = c_void_p(), c_uint32()
    if vulkan is None or vulkan.vkCreateInstance(byref(wanted), None, byref(instance)) != 0:
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
