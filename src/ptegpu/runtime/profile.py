"""A profile of a method: the times of its kernels, its ordinary runs and the host, and the adapter's ceilings."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from ..errors import InvalidInput
from ..gpu import AdapterInfo, Device, measure
from ..gpu.measurement import warm
from ..gpu.timing import KernelTime, TimedRun, Timer, busy, kernel_times, launches
from ..plan.plan import PlannedDispatch, plain
from ..plan.target import DeviceClass
from .call_timeline import CallStep, by_name, steps_of, summed
from .method import MethodRunner

By = Literal["kernel", "operator", "dispatch"]

_PLACE = re.compile(r" #\d+(?: of delegate \d+)?")  # in a label: the number of the node


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """The sum of several dispatches."""

    name: str
    kernel: str  # of a single dispatch; empty for several
    count: int
    seconds: float
    nbytes: int
    flops: int

    @property
    def bytes_per_second(self) -> float:
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Times in seconds of one call of a method, each the median over `repeats` calls."""

    method: str
    adapter: AdapterInfo
    repeats: int
    kernels: tuple[KernelTime, ...]  # each in a pass of its own, in the order in which they ran
    pass_seconds: float  # on the GPU, of the single pass per plan that ordinary calls record
    wall_seconds: float  # of an ordinary call, from its arguments to its results
    ceilings: DeviceClass  # of the adapter, measured
    steps: tuple[CallStep, ...] = ()  # of a call, in order; the host waits for each plan

    @property
    def kernel_seconds(self) -> float:
        """Add up all kernels."""
        return sum(k.seconds for k in self.kernels)

    @property
    def split_seconds(self) -> float:
        """Return the cost of a pass per kernel compared with a single pass."""
        return self.kernel_seconds - self.pass_seconds

    @property
    def host_seconds(self) -> float:
        """Return the time without GPU work: inputs, recording, waiting, reading back."""
        return self.wall_seconds - self.pass_seconds

    @property
    def step_seconds(self) -> float:
        """Add up all steps."""
        return sum(step.seconds for step in self.steps)

    def rows(self, by: By = "kernel") -> list[ProfileRow]:
        """Add up dispatches by kernel or operator, the longest first; by dispatch, list them in their order."""
        if by == "dispatch":
            return [_row(k.dispatch.label, [k], k.kernel) for k in self.kernels]
        groups: dict[str, list[KernelTime]] = {}
        for k in self.kernels:
            groups.setdefault(k.kernel if by == "kernel" else operator_of(k.dispatch), []).append(k)
        return sorted((_row(name, ks) for name, ks in groups.items()), key=lambda row: -row.seconds)

    def to_json(self, by: By = "kernel") -> dict[str, Any]:
        """Return totals, ceilings, rows and steps as plain data."""
        total = self.kernel_seconds
        peak = self.ceilings
        all_steps = summed(self.steps, "sum")
        return {
            "method": self.method,
            "repeats": self.repeats,
            "ceilings": {"bytes_per_s": peak.bandwidth, "flops_per_s": peak.flops},
            "totals": {
                "dispatches": len(self.kernels),
                "kernels_s": total,
                "pass_s": self.pass_seconds,
                "split_s": self.split_seconds,
                "wall_s": self.wall_seconds,
                "host_s": self.host_seconds,
                "steps_s": self.step_seconds,
                "plans": sum(step.kind == "plan" for step in self.steps),
                "host_steps": sum(step.kind not in ("arguments", "plan", "results") for step in self.steps),
                "uploads": all_steps.traffic.uploads,
                "upload_bytes": all_steps.traffic.upload_bytes,
                "upload_s": all_steps.traffic.upload_seconds,
                "readbacks": all_steps.traffic.readbacks,
                "readback_bytes": all_steps.traffic.readback_bytes,
                "readback_s": all_steps.traffic.readback_seconds,
                "bytes": sum(k.dispatch.nbytes for k in self.kernels),
                "flops": sum(k.dispatch.flops for k in self.kernels),
            },
            "by": by,
            "rows": [
                {
                    "name": row.name,
                    **({"kernel": row.kernel} if by == "dispatch" else {}),
                    "count": row.count,
                    "seconds": row.seconds,
                    "share": row.seconds / total if total else 0.0,
                    "bytes": row.nbytes,
                    "flops": row.flops,
                    "bytes_per_s": row.bytes_per_second,
                    "of_bandwidth": row.bytes_per_second / peak.bandwidth,
                    "flops_per_s": row.flops_per_second,
                    "of_flops": row.flops_per_second / peak.flops,
                }
                for row in self.rows(by)
            ],
            "steps": [
                {**step.to_json(), "share": step.seconds / self.step_seconds if self.step_seconds else 0.0}
                for step in by_name(self.steps)
            ],
        }

    def trace(self) -> dict[str, Any]:
        """Return kernels and steps as Chrome's trace events, which Perfetto opens.

        Both begin at 0, because they were measured in different calls.
        """
        names = {1: f"{self.method}: GPU, a pass for each kernel", 2: f"{self.method}: host, steps of another call"}
        meta = [_named("process_name", 0, self.adapter.name)]
        meta += [_named("thread_name", thread, name) for thread, name in names.items()]
        kernels = [
            _event(1, "kernel", k.kernel, k.begin, k.seconds)
            | {
                "args": {
                    "node": k.dispatch.label,
                    "workgroups": list(k.dispatch.grid),
                    "read_bytes": k.dispatch.read_bytes,
                    "write_bytes": k.dispatch.write_bytes,
                    "flops": k.dispatch.flops,
                }
            }
            for k in self.kernels
        ]
        steps = [
            _event(2, step.kind, step.name, step.begin, step.seconds) | {"args": step.to_json()} for step in self.steps
        ]
        return {"displayTimeUnit": "ns", "traceEvents": [*meta, *kernels, *steps]}


def _named(event: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": thread, "name": event, "args": {"name": name}}


def _event(thread: int, category: str, name: str, begin: float, seconds: float) -> dict[str, Any]:
    """Return a complete event; Chrome's times are in microseconds."""
    span = {"ts": begin * 1e6, "dur": seconds * 1e6}
    return {"ph": "X", "pid": 1, "tid": thread, "name": name, "cat": category, **span}


def operator_of(dispatch: PlannedDispatch) -> str:
    """Return the operator of a dispatch: its label without the node's number."""
    return _PLACE.sub("", dispatch.label)


def profile_method(method: MethodRunner, device: Device, arguments: Sequence[Any], repeats: int) -> Profile:
    """Call the method `repeats` times each: untimed, with timed steps, with timed passes, with timed kernels."""
    if repeats < 1:
        raise InvalidInput(f"a profile takes at least 1 call, not {repeats}")
    kernel_timer, pass_timer = Timer(device, each=True), Timer(device, each=False)
    peak = measure(device)
    sessions = [runner.session for runner in method.runners.values()]

    def call() -> float:
        method.reset()
        device.wait()
        started = time.perf_counter()
        method.execute(arguments)
        return time.perf_counter() - started

    def calls(timer: Timer) -> list[list[TimedRun]]:
        """Return the runs of plans in each of the calls."""
        with timer.watching(sessions):
            return [_timed_runs(timer, call) for _ in range(repeats)]

    call()  # prepares plans and warms caches
    warm(device)
    wall = [call() for _ in range(repeats)]
    steps = steps_of(method, device, call, repeats)
    passes = [sum(s for run in ran for _, s in busy(run.spans)) for ran in calls(pass_timer)]
    ran = calls(kernel_timer)
    launched = [launch for run in ran[-1] for launch in launches(run.plan)]
    times = kernel_times(launched, [[span for run in runs for span in run.spans] for runs in ran])
    method.reset()
    return Profile(method.name, device.info, repeats, tuple(times), median(passes), median(wall), peak, tuple(steps))


def _timed_runs(timer: Timer, call: Callable[[], object]) -> list[TimedRun]:
    timer.runs = []
    call()
    return timer.runs


def _row(name: str, kernels: Sequence[KernelTime], kernel: str = "") -> ProfileRow:
    return ProfileRow(
        name,
        kernel,
        len(kernels),
        sum(k.seconds for k in kernels),
        sum(k.dispatch.nbytes for k in kernels),
        sum(plain(k.dispatch.flops) for k in kernels),
    )
