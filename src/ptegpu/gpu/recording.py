"""Runs on their way to the GPU: recorded one behind the other, with what goes up for them, and submitted together."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Literal

import numpy as np

from .buffers import GpuBuffer
from .device import Device
from .ownership import Handle
from .readback import Staging
from .recorder import Steps
from .submit import submit
from .timer import Timer
from .uploads import Arena, room

State = Literal["held", "submitted", "dropped"]


class Recording:
    """One command buffer in the making. Its caller holds the device's lock."""

    def __init__(self, device: Device) -> None:
        self.state: State = "held"
        self.staging: Staging | None = None  # that of the last run
        self._device, self._recorder = device, device.api.record()
        self._touched: dict[int, Sequence[GpuBuffer]] = {}  # by the id of the sequence
        self._arenas: list[Arena] = []
        self._dispatches = 0

    def touch(self, buffers: Sequence[GpuBuffer]) -> None:
        """Note buffers that the work uses."""
        self._touched[id(buffers)] = buffers

    def upload(self, what: Sequence[tuple[GpuBuffer, np.ndarray]]) -> None:
        """Record uploads that are done when the work behind them begins."""
        started, total = perf_counter(), 0
        needed = sum([room(data.nbytes) for _, data in what])
        if needed and (not self._arenas or self._arenas[-1].left < needed):
            self._arenas.append(self._device.uploads.take(needed))
        for target, data in what:
            nbytes = data.nbytes
            if nbytes:
                arena = self._arenas[-1]
                self._recorder.copy(arena.buffer.handle, arena.put(data), target.handle, 0, (nbytes + 3) & ~3)
                total += nbytes
        self._device.counters.bytes_uploaded += total
        self._device.traffic.uploaded(total, started, len(what))

    def copy(self, source: Handle, target: Handle, nbytes: int, at: int = 0) -> None:
        self._recorder.copy(source, 0, target, at, nbytes)

    def compute(self, steps: Steps, timer: Timer | None) -> None:
        if timer is not None:
            self.touch([timer.record(self._recorder, steps)])
        elif self._device.info.type == "software":  # which computes while it is submitted to
            self._recorder.compute(steps)
        else:
            self._recorder.compute_soon(steps)
        self._dispatches += len(steps.groups)

    def drop(self) -> None:
        """Never run, unless it is submitted already."""
        if self.state == "held":
            self.state = "dropped"

    def submit(self) -> None:
        for arena in self._arenas:
            arena.close()
        self.touch([arena.buffer for arena in self._arenas])
        with self._recorder as recorder:
            submit(self._device, recorder, [b for buffers in self._touched.values() for b in buffers])
        self.state = "submitted"
        self._device.counters.dispatches += self._dispatches
        for arena in self._arenas:
            self._device.uploads.give(arena)
        self._arenas, self._touched = [], {}
