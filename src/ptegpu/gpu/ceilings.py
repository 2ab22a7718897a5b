"""The most that an adapter reaches, measured: bytes copied and f32 operations per second."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..plan.plan import ALIGN, Plan
from .device import Device
from .loads import arithmetic, copying, warm
from .profile import pass_time
from .session import Session

ROUNDS = 3
_COPY_BYTES = 256 << 20  # more than any cache holds
_COPY_BYTES_SOFTWARE = 8 << 20
_MEMORY_SHARE = 8  # the part of free memory that one of two buffers may take


@dataclass(frozen=True, slots=True)
class Ceilings:
    bytes_per_second: float  # read and written, by a kernel that copies
    flops_per_second: float  # f32, a fused multiply-add counting as two


_measured: WeakKeyDictionary[Device, Ceilings] = WeakKeyDictionary()


def ceilings(device: Device) -> Ceilings:
    """The ceilings of a device, measured on first use."""
    with device.lock:
        if device not in _measured:
            _measured[device] = _measure(device)
        return _measured[device]


def _measure(device: Device) -> Ceilings:
    target = device.target
    copy = copying(target, _copy_bytes(device))
    load = arithmetic(target, groups=64, turns=4) if target.software else arithmetic(target, groups=4096, turns=256)
    warm(device)
    moved, done = copy.dispatches[0].nbytes, load.dispatches[0].flops
    found = Ceilings(moved / _best(device, copy), done / _best(device, load))
    device.pool.clear()  # of buffers so large that they leave no room for others
    return found


def _copy_bytes(device: Device) -> int:
    wanted = _COPY_BYTES_SOFTWARE if device.target.software else _COPY_BYTES
    limits = [wanted, device.target.max_binding_bytes, device.target.max_buffer_bytes]
    free = device.available_bytes()
    if free is not None:
        limits.append(max(free // _MEMORY_SHARE, 1 << 20))
    return min(limits) // ALIGN * ALIGN


def _best(device: Device, plan: Plan) -> float:
    """Seconds of the fastest round, after one that does not count."""
    with Session(device) as session:
        prepared = session.prepare(plan)
        return min([pass_time(session, prepared, []) for _ in range(ROUNDS + 1)][1:])
