"""Runs plans on WebGPU. The only package that imports its engines, each when it is first needed."""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .checks import check, device_bytes
    from .device import Counters, Device, open_device
    from .discovery import (
        PACKAGES,
        AdapterInfo,
        Engine,
        adapters,
        check_engine,
        choose_adapter,
        engine_messages,
        find_adapter,
        installed,
    )
    from .loaded import LoadedPlan, Unplanned
    from .measurement import measure
    from .readback import DeviceTensor, Pending
    from .session import Session
    from .store import SharedConstants
    from .threads import Lock

_LAZY = {
    ".checks": ["check", "device_bytes"],
    ".device": ["Counters", "Device", "open_device"],
    ".discovery": [
        "PACKAGES",
        "AdapterInfo",
        "Engine",
        "adapters",
        "check_engine",
        "choose_adapter",
        "find_adapter",
        "installed",
        "engine_messages",
    ],
    ".loaded": ["LoadedPlan", "Unplanned"],
    ".measurement": ["measure"],
    ".readback": ["DeviceTensor", "Pending"],
    ".session": ["Session"],
    ".store": ["SharedConstants"],
    ".threads": ["Lock"],
}
__getattr__ = lazy(__name__, {name: module for module, names in _LAZY.items() for name in names})

__all__ = [
    "PACKAGES",
    "AdapterInfo",
    "Counters",
    "Device",
    "DeviceTensor",
    "Engine",
    "LoadedPlan",
    "Lock",
    "Pending",
    "Session",
    "SharedConstants",
    "Unplanned",
    "adapters",
    "check",
    "check_engine",
    "choose_adapter",
    "device_bytes",
    "engine_messages",
    "find_adapter",
    "installed",
    "measure",
    "open_device",
]
