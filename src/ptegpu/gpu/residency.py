"""Workgroups that may wait for each other inside a dispatch: how many a GPU runs at the same time, found by a probe.

WebGPU promises no progress across workgroups: one that does not run yet cannot arrive at a barrier. So a dispatch with
barriers across workgroups has at most as many as the probe saw arrive; each wait ends after `SPINS` looks at the
counter; and a run in which a wait ended so is repeated as ordinary dispatches (`repeats.py`).

The verdict is saved in the user's cache folder, per adapter, driver and engine. A run that gave up adds a mark, which
outweighs the verdict until `ptegpu doctor --measure` probes again.
"""

from __future__ import annotations

import math
import random
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..dtypes import DType
from ..errors import DeviceError, LimitExceeded, OutOfMemory
from ..plan.plan import Binding, Buffer, Kernel, Plan, PlannedDispatch, Port, fixed
from ..plan.target import Target
from . import discovery
from .measurement import SIZES, arithmetic, best_time, measure, warm
from .merged_kernel import SPINS
from .repeats import GAVE_UP
from .session import Session
from .timing import pass_time

if TYPE_CHECKING:
    from .device import Device
    from .loaded import LoadedPlan

VERSION = 1  # of the probe; verdicts of other versions do not count
INVOCATIONS = 256  # of a workgroup
ROUNDS = 100_000  # of a complete probe
SOFTWARE_ROUNDS = 1_000
SECONDS = 0.5  # a probe on first use ends after these, with fewer rounds

_FIRST, _MOST = 16, 1_024  # rounds of a dispatch
_BYTES = 8 << 20  # of the values of a dispatch
_LONG = 0.05  # seconds of a dispatch; a driver ends one after seconds
_VALUES = 8  # that a workgroup writes in a round, of each kind
_LINE = 64  # words to which a round's values are padded: rounds share no line of a cache
_SHARES = 1, 3 / 4, 1 / 2, 1 / 4  # of the adapter's units, tried in turn
_SLOWER = 1.5  # one workgroup more than units doubles the time
_TIMED = 5  # dispatches that time the barrier

Entry = Literal["resident", "gave-up"]  # what is saved: a verdict, or a mark


@dataclass(frozen=True, slots=True)
class Residency:
    """The verdict of a probe."""

    workgroups: int  # that may wait for each other, each with all workgroup memory of the adapter; 0: none
    reason: str = ""  # why none may
    invocations: int = INVOCATIONS  # of each workgroup, at most
    barrier_seconds: float = 0.0
    rounds: int = 0  # in each of which all workgroups read the values of all others


def settle(device: Device) -> None:
    """Give a new device the number of its workgroups that may wait for each other."""
    _set(device, verdict(device).workgroups)


def verdict(device: Device) -> Residency:
    """Return the verdict on a device: a mark, or the saved verdict, or that of a probe within about a second."""
    for entry in ("gave-up", "resident"):
        if (saved := _read(entry, device)) is not None:
            return saved
    try:
        residency = probe(device, seconds=SECONDS)
    except OutOfMemory as error:  # of the moment
        return Residency(0, str(error))
    with suppress(DeviceError):  # a folder that cannot be written
        _save("resident", device, residency)
    return residency


def renew(device: Device) -> Residency:
    """Probe completely, drop the mark, and save the verdict for later devices."""
    residency = probe(device)
    _saved.pop(("gave-up", *_key(device)), None)
    discovery.remove_entry("gave-up", _key(device))
    _save("resident", device, residency)
    return residency


def mark_failed(device: Device, reason: str) -> None:
    """Note that a run gave up: this device, and later ones of its adapter, run ordinary dispatches."""
    with device.lock:
        _set(device, 0)
        with suppress(DeviceError):
            _save("gave-up", device, Residency(0, f"a run gave up: {reason}"))


def require(device: Device) -> None:
    """Raise LimitExceeded if no workgroups of a device may wait for each other."""
    if not device.resident:
        reason = verdict(device).reason or "this device was opened without them"
        raise LimitExceeded(
            f'persistent="on" needs workgroups that wait for each other; {device.target.name} has none: {reason}'
        )


def _set(device: Device, workgroups: int) -> None:
    device.resident, device.target = workgroups, replace(device.target, resident=workgroups)


def probe(device: Device, workgroups: int | None = None, *, seconds: float = math.inf, spins: int = SPINS) -> Residency:
    """Look for the most workgroups that may wait for each other: one per unit of the adapter, or a share of that.

    `workgroups` replaces the units. No further dispatch starts after `seconds`.
    """
    reason, tried = "", 0
    try:
        with device.lock:
            most = _units(device) if workgroups is None else workgroups
            for share in _SHARES:
                if max(1, int(most * share)) != tried:
                    tried = max(1, int(most * share))
                    with Session(device) as session:
                        residency = _attempt(session, tried, seconds, spins)
                    if residency.workgroups:
                        return residency
                    reason = reason or residency.reason
    except OutOfMemory:
        raise
    except (DeviceError, LimitExceeded) as error:
        reason = str(error)
    return Residency(0, reason)


def _units(device: Device) -> int:
    """Return the most workgroups that take as long as one, at most the units of the device's class."""
    target = device.target
    if target.software:
        return 1
    units = (target.device_class if target.device_class.measured else measure(device)).units
    turns = SIZES[target.device_class.name].turns_single
    warm(device)
    low, high = 1, units + 1
    while high - low > 1:
        middle = (low + high) // 2
        single, seconds = (best_time(device, arithmetic(target, groups, turns)) for groups in (1, middle))
        low, high = (middle, high) if seconds < _SLOWER * single else (low, middle)
    return low


def _attempt(session: Session, workgroups: int, seconds: float, spins: int) -> Residency:
    """Let this number of workgroups wait for each other, round after round."""
    loaded = session.prepare(barriers(session.device.target, workgroups))
    rounds, most = 0, SOFTWARE_ROUNDS if session.device.target.software else ROUNDS
    salt = random.randrange(1 << 20)  # buffers of the pool may hold the values of another probe
    count, longest = _FIRST, _rounds(workgroups)
    end = perf_counter() + seconds
    while not rounds or (rounds < most and perf_counter() < end):
        started, count = perf_counter(), min(count, most - rounds)
        arrivals, wrong = _run(session, loaded, salt + rounds, count, spins)
        if arrivals >= GAVE_UP:
            return Residency(0, f"some workgroups waited in vain ({workgroups} at once, {spins:,} looks)")
        if wrong or arrivals != workgroups * count:
            return Residency(0, f"workgroups read {wrong:,} wrong values behind a barrier ({workgroups} at once)")
        rounds += count
        if perf_counter() - started < _LONG / 2:
            count = min(2 * count, longest)
    barrier = 0.0
    if session.device.timestamps:
        inputs = _inputs(rounds, count, spins, compare=False)
        barrier = min(pass_time(session, loaded, inputs) for _ in range(_TIMED)) / count
    return Residency(workgroups, "", loaded.plan.kernels[0].workgroup, barrier, rounds)


def _run(session: Session, loaded: LoadedPlan, first: int, rounds: int, spins: int) -> tuple[int, int]:
    """Run some rounds; return the number of arrivals, and of wrong values."""
    (state,) = session.run(loaded, _inputs(first, rounds, spins))
    assert isinstance(state, np.ndarray)
    return int(state[0]), int(state[1])


def _inputs(first: int, rounds: int, spins: int, *, compare: bool = True) -> list[np.ndarray]:
    return [np.array([first, rounds, spins, compare], np.int32), np.zeros(4, np.int32)]


def _region(workgroups: int) -> int:
    return -(-workgroups * _VALUES // _LINE) * _LINE


def _rounds(workgroups: int) -> int:
    """Return the most rounds of a dispatch."""
    return max(_FIRST, min(_MOST, _BYTES // (4 * _region(workgroups))))


def barriers(target: Target, workgroups: int) -> Plan:
    """Plan rounds in which each workgroup writes values, waits for all others, and compares their values.

    Half of the values are plain, in a region that nobody read before in the dispatch; half are atomic.
    """
    invocations = target.workgroup(INVOCATIONS)
    words = target.max_shared_bytes // 4
    region = 4 * _region(workgroups)  # bytes
    wgsl = f"""
@group(0) @binding(0) var<storage, read> call: vec4u;  // first round, rounds, most looks, compare or not
@group(0) @binding(1) var<storage, read_write> state: array<atomic<u32>, 4>;  // arrivals, wrong values
@group(0) @binding(2) var<storage, read_write> plain: array<u32>;  // a region per round
@group(0) @binding(3) var<storage, read_write> halves: array<atomic<u32>>;  // for even and for odd rounds
var<workgroup> memory: array<u32, {words}>;

fn slot(round: u32, lane: u32) -> u32 {{
    return 1u + (round * {invocations}u + lane) % {words - 1}u;
}}

@compute @workgroup_size({invocations})
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {{
    let rounds = call.y;
    let region = (groups.x * {_VALUES}u + {_LINE - 1}u) / {_LINE}u * {_LINE}u;
    var wrong = 0u;
    for (var round = 0u; round < rounds; round++) {{
        let tag = (call.x + round + 1u) * 7919u;
        let half = (round & 1u) * region;
        if (lane < {_VALUES}u) {{
            let i = group.x * {_VALUES}u + lane;
            plain[round * region + i] = tag + i;
            atomicStore(&halves[half + i], tag ^ i);
        }}
        memory[slot(round, lane)] = tag + lane;
        storageBarrier();
        workgroupBarrier();
        if (lane == 0u) {{
            atomicAdd(&state[0], 1u);
            let all = (round + 1u) * groups.x;
            var arrivals = 0u;
            for (var looks = 0u; looks < call.z && arrivals < all; looks++) {{
                arrivals = atomicLoad(&state[0]);
            }}
            while (arrivals < all) {{  // all pass the barrier, or none
                let last = atomicCompareExchangeWeak(&state[0], arrivals, {GAVE_UP}u);
                arrivals = select(last.old_value, {GAVE_UP}u, last.exchanged);
            }}
            memory[0] = arrivals;
        }}
        storageBarrier();
        if (workgroupUniformLoad(&memory[0]) >= {GAVE_UP}u) {{
            break;
        }}
        if (call.w != 0u) {{
            wrong += u32(memory[slot(round, lane ^ 1u)] != tag + (lane ^ 1u));
            for (var i = lane; i < groups.x * {_VALUES}u; i += {invocations}u) {{
                wrong += u32(plain[round * region + i] != tag + i);
                wrong += u32(atomicLoad(&halves[half + i]) != (tag ^ i));
            }}
        }}
    }}
    if (wrong != 0u) {{
        atomicAdd(&state[1], wrong);
    }}
}}
"""
    kernel = Kernel("barriers", wgsl, ("read", "write", "write", "write"), invocations, 4 * words)
    sizes = {"call": 16, "state": 16, "plain": region * _rounds(workgroups), "halves": 2 * region}
    buffers = [Buffer(n, b, "input" if n in ("call", "state") else "temp") for n, b in sizes.items()]
    bindings = tuple(Binding(k, 0, b.nbytes) for k, b in enumerate(buffers))
    ports = [Port(n, k, DType.I32, (4,)) for k, n in enumerate(("call", "state"))]
    dispatch = PlannedDispatch(0, bindings, (workgroups, 1), "barriers")
    return fixed("barriers", buffers, (kernel,), (dispatch,), inputs=ports, outputs=ports[1:])


_saved: dict[tuple[Any, ...], Residency] = {}  # by entry and key; also those that no folder holds


def _key(device: Device) -> list[str | int]:
    info = device.info
    return [VERSION, info.name, info.backend, info.driver, info.engine, device.target.max_shared_bytes]


def _save(entry: Entry, device: Device, residency: Residency) -> None:
    _saved[entry, *_key(device)] = residency
    discovery.save_entry(entry, _key(device), asdict(residency))


def _read(entry: Entry, device: Device) -> Residency | None:
    """Return what this process or another one saved."""
    key = _key(device)
    if (entry, *key) not in _saved:
        with suppress(LookupError, TypeError, ValueError):
            record = discovery.read_entry(entry, key)
            residency = Residency(**{f.name: record[f.name] for f in fields(Residency)})
            kinds = [type(getattr(residency, f.name)) for f in fields(Residency)]
            if kinds == [int, str, int, float, int] and 0 <= residency.workgroups <= device.target.max_groups:
                _saved[entry, *key] = residency
    return _saved.get((entry, *key))
