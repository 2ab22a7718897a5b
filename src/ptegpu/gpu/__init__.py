"""Runs plans on WebGPU. The only package that imports wgpu."""

from __future__ import annotations

from .adapters import AdapterInfo, adapters, choose
from .device import Counters, Device, open_device
from .limits import check, device_bytes
from .measurement import measure
from .session import Pending, Prepared, Session, Unplanned
from .store import SharedConstants
from .tensor import DeviceTensor

__all__ = [
    "AdapterInfo",
    "Counters",
    "Device",
    "DeviceTensor",
    "Pending",
    "Prepared",
    "Session",
    "SharedConstants",
    "Unplanned",
    "adapters",
    "check",
    "choose",
    "device_bytes",
    "measure",
    "open_device",
]
