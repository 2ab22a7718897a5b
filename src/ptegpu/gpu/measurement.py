"""What an adapter can do, measured: the figures of its class.

Four loads: a copy of more than any cache holds; multiply-adds in registers; the same in a single workgroup, as many
times slower as there are units; dispatches that do next to nothing.
"""

from __future__ import annotations

from dataclasses import replace

from ..plan.plan import ALIGN, Plan, plain
from ..plan.target import DeviceClass
from . import classes
from .device import Device
from .profile import pass_time
from .session import Session
from .stress import SIZES, arithmetic, copying, warm

ROUNDS = 3
_DISPATCHES = 64
_MEMORY_SHARE = 8  # the part of free memory that one of two buffers may take
_SHORTEST = 1e-9  # seconds: a clock may be too coarse to see any


def measure(device: Device, *, keep: bool = False) -> DeviceClass:
    """Return the class of a device with figures measured on it, once per device, in some tenths of a second.

    With `keep` also on disk: from the next process on, plans are made for it.
    """
    with device.lock:
        found = device.measured = device.measured or _measure(device)
        if keep:
            classes.keep(device.info, found)
        return found


def _measure(device: Device) -> DeviceClass:
    target, sizes = device.target, SIZES[device.target.device_class.name]
    copy = copying(target, _copy_bytes(device))
    load = arithmetic(target, sizes.groups, sizes.turns)
    alone = arithmetic(target, 1, sizes.turns_alone)
    nothing = arithmetic(target, 1, 1)
    (family,) = nothing.families
    many = replace(nothing, families=(replace(family, steps=family.steps * _DISPATCHES),))
    warm(device)
    try:
        flops = plain(load.dispatches[0].flops) / _best(device, load)
        return DeviceClass(
            device.info.type,
            bandwidth=copy.dispatches[0].nbytes / _best(device, copy),
            flops=flops,
            dispatch_seconds=_best(device, many) / _DISPATCHES,
            units=max(1, round(flops * _best(device, alone) / plain(alone.dispatches[0].flops))),
            measured=True,
        )
    finally:
        device.pool.clear()  # of buffers so large that they leave no room for others


def _copy_bytes(device: Device) -> int:
    wanted = SIZES[device.target.device_class.name].copied
    limits = [wanted, device.target.max_binding_bytes, device.target.max_buffer_bytes]
    free = device.available_bytes()
    if free is not None:
        limits.append(max(free // _MEMORY_SHARE, 1 << 20))
    return min(limits) // ALIGN * ALIGN


def _best(device: Device, plan: Plan) -> float:
    """Return the seconds of the fastest round, after one that does not count."""
    with Session(device) as session:
        loaded = session.prepare(plan)
        return max(_SHORTEST, min([pass_time(session, loaded, []) for _ in range(ROUNDS + 1)][1:]))
