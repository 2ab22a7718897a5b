"""GPU time of a plan: of each dispatch, in a pass of its own, and of the single pass that ordinary runs record.

Timestamp queries note when a pass begins and ends; they are resolved and read back after the run. WebGPU has them at
the ends of passes only. Splitting passes costs time that ordinary runs do not take, so the dispatches add up to more
than `pass_time` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, median_low

from ..errors import LimitExceeded
from ..plan.plan import Plan, PlannedDispatch
from .buffers import GpuBuffer
from .checks import Argument
from .device import Device
from .loaded import LoadedPlan
from .recorder import Recorder, Steps
from .session import Session

MAX_QUERIES = 4096  # of one query set, in WebGPU
_QUERY_BYTES = 8

Span = tuple[float, float]  # begin and end of a pass, in seconds since the timer's first pass began


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A run of a plan, evaluated at its sizes, with the span of each of its passes."""

    plan: Plan
    spans: tuple[Span, ...]


class Timer:
    """A timer for the runs of sessions: of a run's single pass or, with `each`, of a pass per dispatch."""

    def __init__(self, device: Device, *, each: bool) -> None:
        if not device.timestamps:
            name = device.target.name
            raise LimitExceeded(f"GPU time is measured with timestamp queries, which {name} does not have")
        self.device, self.each = device, each
        self.runs: list[TimedRun] = []
        self._seconds_per_tick = device.api.timestamp_period() * 1e-9
        self._first: int | None = None
        self._times: GpuBuffer | None = None  # of the last passes recorded
        self._queries = 0

    @contextmanager
    def watching(self, sessions: Iterable[Session]) -> Iterator[None]:
        """Time the runs of these sessions in a block."""
        watched = list(sessions)
        for session in watched:
            session.timer = self
        try:
            yield
        finally:
            for session in watched:
                session.timer = None

    def record(self, recorder: Recorder, steps: Steps) -> GpuBuffer:
        """Record the steps in timed passes; return the buffer for their times."""
        passes = [Steps(*([field] for field in step)) for step in zip(*steps)] if self.each else [steps]
        self._queries = 2 * len(passes)
        self._times = self.device.buffer("timestamps", self._queries * _QUERY_BYTES, "queries")
        for first in range(0, self._queries, MAX_QUERIES):
            queries = self.device.api.query_set(min(MAX_QUERIES, self._queries - first))
            for query in range(0, queries.size, 2):
                recorder.compute(passes[(first + query) // 2], (queries, query, query + 1))
            recorder.resolve(queries, self._times.handle, first * _QUERY_BYTES)
        return self._times

    def collect(self, loaded: LoadedPlan) -> None:
        """Read the times of the last passes recorded; a run without a pass has none."""
        spans: list[Span] = []
        if self._times is not None:
            ticks = memoryview(self.device.read(self._times, self._queries * _QUERY_BYTES)).cast("Q")
            self.device.release(self._times)
            self._times = None
            first = self._first = ticks[0] if self._first is None else self._first
            seconds = [(tick - first) * self._seconds_per_tick for tick in ticks]
            spans = list(zip(seconds[::2], seconds[1::2], strict=True))
        assert loaded.last is not None
        self.runs.append(TimedRun(loaded.last, tuple(spans)))


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A dispatch and the time it took."""

    kernel: str
    dispatch: PlannedDispatch
    begin: float  # seconds after the first dispatch began
    seconds: float


def pass_time(session: Session, loaded: LoadedPlan, inputs: Sequence[Argument]) -> float:
    """Return the seconds on the GPU of one ordinary run; 0 for a plan without dispatches."""
    timer = Timer(session.device, each=False)
    with timer.watching([session]):
        session.run(loaded, inputs, read=[])
    return sum(seconds for _, seconds in busy(timer.runs[0].spans))


def launches(plan: Plan) -> list[tuple[str, PlannedDispatch]]:
    """List the dispatches of a run with their kernels' names, without those that are empty or run only once."""
    return [(plan.kernels[d.kernel].name, d) for d in plan.dispatches if 0 not in d.grid and not d.once]


def busy(spans: Sequence[Span]) -> list[Span]:
    """Return begin and duration of each pass; a pass that overlaps the previous one counts from the end of that one."""
    passes, free = [], float("-inf")
    for begin, end in spans:
        begin = max(begin, free)
        free = max(begin, end)
        passes.append((begin, free - begin))
    return passes


def kernel_times(launched: Sequence[tuple[str, PlannedDispatch]], runs: Sequence[Sequence[Span]]) -> list[KernelTime]:
    """Return the times of the launched dispatches: durations are medians over the runs.

    Each begins as in the run of median length, but not before the previous one ends.
    """
    measured = [busy(spans) for spans in runs]
    totals = [sum(seconds for _, seconds in passes) for passes in measured]
    typical = measured[totals.index(median_low(totals))]
    times: list[KernelTime] = []
    for number, (kernel, dispatch) in enumerate(launched):
        begin = typical[number][0] - typical[0][0]
        if times:
            begin = max(begin, times[-1].begin + times[-1].seconds)
        times.append(KernelTime(kernel, dispatch, begin, median(passes[number][1] for passes in measured)))
    return times
