"""A timeline of a call: its arguments, its plans, the host's steps between them, its results.

The host waits for a plan before it reads the results, which separates waiting from reading back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import Any

from ..gpu.device import Device, Traffic
from ..plan.method import Item
from .method import Mark, MethodRunner
from .steps import kind_of, name_of


@dataclass(frozen=True, slots=True)
class CallStep:
    """A step of a call, or the sum of several. Times are in seconds."""

    kind: str  # "arguments", a kind of item, "results"
    name: str
    count: int
    begin: float  # of the first step, since the call began
    seconds: float
    waited: float  # for the GPU
    traffic: Traffic

    @property
    def host_seconds(self) -> float:
        """Return the time without waiting and traffic: checks, shapes, recording, NumPy."""
        spent = self.waited + self.traffic.upload_seconds + self.traffic.readback_seconds
        return max(self.seconds - spent, 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the `share` of the sum, which the caller computes."""
        return {
            "kind": self.kind,
            "name": self.name,
            "count": self.count,
            "seconds": self.seconds,
            "wait_s": self.waited,
            "uploads": self.traffic.uploads,
            "upload_bytes": self.traffic.upload_bytes,
            "upload_s": self.traffic.upload_seconds,
            "readbacks": self.traffic.readbacks,
            "readback_bytes": self.traffic.readback_bytes,
            "readback_s": self.traffic.readback_seconds,
            "host_s": self.host_seconds,
        }


class CallRecorder:
    """A recorder of the steps of one call of a method."""

    def __init__(self, device: Device, plans: dict[int, str]) -> None:
        self.device, self.plans = device, plans  # names of plans by the ids of their items
        self.steps: list[CallStep] = []
        self._first = self._last = time.perf_counter()
        self._waited = 0.0
        self._before = device.traffic.snapshot()

    def __call__(self, mark: Mark, item: Item | None) -> None:
        now = time.perf_counter()
        if mark == "called":
            self._first = self._last = now
            self._before = self.device.traffic.snapshot()
            return
        if mark == "submitted":
            self.device.wait()
            self._waited += time.perf_counter() - now
            return
        kind, name = ("arguments",) * 2 if mark == "accepted" else ("results",) * 2
        if item is not None:
            kind, name = kind_of(item), self.plans.get(id(item)) or name_of(item)
        traffic = self.device.traffic.since(self._before)
        self.steps.append(CallStep(kind, name, 1, self._last - self._first, now - self._last, self._waited, traffic))
        self._waited, self._before, self._last = 0.0, self.device.traffic.snapshot(), time.perf_counter()


def steps_of(method: MethodRunner, device: Device, call: Callable[[], object], repeats: int) -> list[CallStep]:
    """Time the steps of `call`, which runs the method once; times are medians over `repeats` calls."""
    nodes = {
        id(method.items[k]): max((len(f.steps) for f in r.plan.families), default=0) for k, r in method.runners.items()
    }
    plans = {key: f"plan {n} ({count} node{'s' * (count != 1)})" for n, (key, count) in enumerate(nodes.items(), 1)}
    calls = []
    for _ in range(repeats):
        method.watch = recorder = CallRecorder(device, plans)
        try:
            call()
        finally:
            method.watch = None
        calls.append(recorder.steps)
    totals = [sum(step.seconds for step in steps) for steps in calls]
    typical = calls[totals.index(median_low(totals))]
    alike = [steps for steps in calls if [s.name for s in steps] == [s.name for s in typical]]
    medians: list[CallStep] = []
    for typical_step, *same in zip(typical, *alike, strict=True):
        end = medians[-1].begin + medians[-1].seconds if medians else 0.0
        medians.append(_median(same, max(typical_step.begin, end)))
    return medians


def _median(same: Sequence[CallStep], begin: float) -> CallStep:
    traffic = replace(
        same[0].traffic,
        upload_seconds=median(s.traffic.upload_seconds for s in same),
        readback_seconds=median(s.traffic.readback_seconds for s in same),
    )
    waited, seconds = (median(getattr(s, name) for s in same) for name in ("waited", "seconds"))
    return replace(same[0], begin=begin, seconds=seconds, waited=waited, traffic=traffic)


def summed(steps: Sequence[CallStep], name: str = "") -> CallStep:
    """Return the sum of several steps."""
    fields = Traffic.__slots__
    return CallStep(
        steps[0].kind if steps else "",
        name or steps[0].name,
        sum(s.count for s in steps),
        steps[0].begin if steps else 0.0,
        sum(s.seconds for s in steps),
        sum(s.waited for s in steps),
        Traffic(*(sum(getattr(s.traffic, field) for s in steps) for field in fields)),
    )


def by_name(steps: Sequence[CallStep]) -> list[CallStep]:
    """Sum the steps of each name, in the order in which they first ran."""
    groups: dict[tuple[str, str], list[CallStep]] = {}
    for step in steps:
        groups.setdefault((step.kind, step.name), []).append(step)
    return [summed(group) for group in groups.values()]
