"""When the GPU begins and ends the compute passes of a run: timestamp queries, resolved and read back after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import LimitExceeded
from ..plan.plan import Plan
from .buffers import GpuBuffer
from .device import Device
from .recorder import Recorder, Steps

if TYPE_CHECKING:
    from .loaded import LoadedPlan
    from .session import Session

MAX_QUERIES = 4096  # of one query set, in WebGPU
_QUERY_BYTES = 8

Span = tuple[float, float]  # when a pass begins and ends, in seconds since the timer's first pass began


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A run of a plan, which is that of its sizes, with the span of each of its passes."""

    plan: Plan
    spans: tuple[Span, ...]


class Timer:
    """Times what the sessions run whose `timer` it is: a run's single pass or, with `each`, a pass per dispatch."""

    def __init__(self, device: Device, *, each: bool) -> None:
        if not device.timestamps:
            name = device.target.name
            raise LimitExceeded(f"GPU time is measured with timestamp queries, which {name} does not have")
        self.device, self.each = device, each
        self.runs: list[TimedRun] = []
        self._seconds_per_tick = device.api.timestamp_period() * 1e-9
        self._first: int | None = None
        self._times: GpuBuffer | None = None  # of the passes recorded last
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
        """Record the steps in timed passes; return the buffer that their times go into."""
        one_by_one = [Steps(*([one] for one in step)) for step in zip(*steps)]
        passes = one_by_one if self.each else [steps]
        self._queries = 2 * len(passes)
        self._times = self.device.buffer("timestamps", self._queries * _QUERY_BYTES, "queries")
        for first in range(0, self._queries, MAX_QUERIES):
            queries = self.device.api.query_set(min(MAX_QUERIES, self._queries - first))
            for query in range(0, queries.count, 2):
                recorder.compute(passes[(first + query) // 2], (queries, query, query + 1))
            recorder.resolve(queries, self._times.handle, first * _QUERY_BYTES)
        return self._times

    def collect(self, loaded: LoadedPlan) -> None:
        """Read the times of the passes recorded last; a run without a pass has none."""
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
