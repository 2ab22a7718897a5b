"""Runs plans on WebGPU. The only package that imports its engines, each when it is needed."""

from __future__ import annotations

from .adapters import PACKAGES, AdapterInfo, Engine, adapters, check_engine, choose, find, installed, said
from .device import Counters, Device, open_device
from .limits import check, device_bytes
from .loaded import LoadedPlan, Unplanned
from .measurement import measure
from .readback import Pending
from .session import Session
from .store import SharedConstants
from .tensor import DeviceTensor
from .threads import Lock

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
    "choose",
    "device_bytes",
    "find",
    "installed",
    "measure",
    "open_device",
    "said",
]
