"""Where the time of a method goes: its kernels, its ordinary runs, the host, held against what the adapter can do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from ..errors import InvalidInput
from ..gpu import AdapterInfo, Device
from ..gpu.ceilings import Ceilings, ceilings
from ..gpu.loads import warm
from ..gpu.profile import KernelTime, busy, kernel_times, launches
from ..gpu.timer import TimedRun, Timer
from ..plan.plan import Dispatch
from .engine import Engine
from .method import Method

By = Literal["kernel", "operator", "dispatch"]

_PLACE = re.compile(r" #\d+(?: of delegate \d+)?")  # in a label: which node of the program


@dataclass(frozen=True, slots=True)
class Row:
    """Dispatches that are counted together."""

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
    ceilings: Ceilings

    @property
    def kernel_seconds(self) -> float:
        """All kernels, added up."""
        return sum(k.seconds for k in self.kernels)

    @property
    def split_seconds(self) -> float:
        """What a pass for each kernel costs more than one pass for all."""
        return self.kernel_seconds - self.pass_seconds

    @property
    def host_seconds(self) -> float:
        """The part of a call in which the GPU does not compute: inputs, recording, waiting, reading back."""
        return self.wall_seconds - self.pass_seconds

    def rows(self, by: By = "kernel") -> list[Row]:
        """Dispatches added up by kernel or operator, the longest first; by dispatch, in their order."""
        if by == "dispatch":
            return [_row(k.dispatch.label, [k], k.kernel) for k in self.kernels]
        groups: dict[str, list[KernelTime]] = {}
        for k in self.kernels:
            groups.setdefault(k.kernel if by == "kernel" else operator_of(k.dispatch), []).append(k)
        return sorted((_row(name, ks) for name, ks in groups.items()), key=lambda row: -row.seconds)

    def to_json(self, by: By = "kernel") -> dict[str, Any]:
        """Totals, ceilings and rows as plain data."""
        total = self.kernel_seconds
        peak = self.ceilings
        return {
            "method": self.method,
            "repeats": self.repeats,
            "ceilings": {"bytes_per_s": peak.bytes_per_second, "flops_per_s": peak.flops_per_second},
            "totals": {
                "dispatches": len(self.kernels),
                "kernels_s": total,
                "pass_s": self.pass_seconds,
                "split_s": self.split_seconds,
                "wall_s": self.wall_seconds,
                "host_s": self.host_seconds,
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
                    "of_bandwidth": row.bytes_per_second / peak.bytes_per_second,
                    "flops_per_s": row.flops_per_second,
                    "of_flops": row.flops_per_second / peak.flops_per_second,
                }
                for row in self.rows(by)
            ],
        }

    def trace(self) -> dict[str, Any]:
        """The kernels on a line of time, as Chrome's trace events, which Perfetto opens."""
        names = {"process_name": self.adapter.name, "thread_name": f"{self.method}, a pass for each kernel"}
        meta = [{"ph": "M", "pid": 1, "tid": 1, "name": n, "args": {"name": text}} for n, text in names.items()]
        events = [
            {
                "ph": "X",
                "pid": 1,
                "tid": 1,
                "name": k.kernel,
                "cat": "kernel",
                "ts": k.begin * 1e6,
                "dur": k.seconds * 1e6,
                "args": {
                    "node": k.dispatch.label,
                    "workgroups": list(k.dispatch.grid),
                    "read_bytes": k.dispatch.read_bytes,
                    "write_bytes": k.dispatch.write_bytes,
                    "flops": k.dispatch.flops,
                },
            }
            for k in self.kernels
        ]
        return {"displayTimeUnit": "ns", "traceEvents": [*meta, *events]}


def operator_of(dispatch: Dispatch) -> str:
    """The operator that a dispatch serves: its label without the node's number."""
    return _PLACE.sub("", dispatch.label)


def profile_method(method: Method, device: Device, arguments: Sequence[Any], repeats: int) -> Profile:
    """Calls the method `repeats` times each plainly, with its passes timed, and with its kernels timed."""
    if repeats < 1:
        raise InvalidInput(f"a profile takes at least 1 call, not {repeats}")
    each, whole = Timer(device, each=True), Timer(device, each=False)
    peak = ceilings(device)
    engines = {id(engine.session): engine for engine in method.engines.values()}
    sessions = [engine.session for engine in engines.values()]

    def call() -> float:
        method.reset()
        device.wait()
        started = time.perf_counter()
        method.execute(arguments)
        return time.perf_counter() - started

    def calls(timer: Timer) -> list[list[TimedRun]]:
        """The plans that each of the calls ran."""
        with timer.watching(sessions):
            return [_taken(timer, call) for _ in range(repeats)]

    call()  # prepares plans, and warms caches
    warm(device)
    wall = [call() for _ in range(repeats)]
    passes = [sum(s for run in ran for _, s in busy(run.spans)) for ran in calls(whole)]
    ran = calls(each)
    launched = [launch for run in ran[-1] for launch in _launches(run, engines)]
    times = kernel_times(launched, [[span for run in runs for span in run.spans] for runs in ran])
    method.reset()
    return Profile(method.name, device.info, repeats, tuple(times), median(passes), median(wall), peak)


def _taken(timer: Timer, call: Callable[[], object]) -> list[TimedRun]:
    timer.runs = []
    call()
    return timer.runs


def _launches(run: TimedRun, engines: dict[int, Engine]) -> list[tuple[str, Dispatch]]:
    """The dispatches of a run, with figures as of the symbolic ints now where its plan is still the current one."""
    engine = engines[id(run.prepared.session)]
    return launches(engine.plan_now() if run.prepared is engine.current else run.prepared.plan)


def _row(name: str, kernels: Sequence[KernelTime], kernel: str = "") -> Row:
    return Row(
        name,
        kernel,
        len(kernels),
        sum(k.seconds for k in kernels),
        sum(k.dispatch.nbytes for k in kernels),
        sum(k.dispatch.flops for k in kernels),
    )
