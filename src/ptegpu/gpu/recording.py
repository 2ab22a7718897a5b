"""Runs on their way to the GPU: recorded in order, with their uploads, and submitted together.

A signal handler may raise between any two steps of Python code, and the device may be lost in any call of its library.
`GuardedRecording` then drops what was recorded, which never runs. None of its uploads counts as done, so the next run
repeats them.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from .buffers import Arena, GpuBuffer, room
from .device import Device
from .readback import DeviceTensor, Staging
from .recorder import Steps

if TYPE_CHECKING:
    from .loaded import LoadedPlan, RecordedSteps
    from .timing import Timer


State = Literal["held", "submitted", "dropped"]


class Recording:
    """One command buffer that is being recorded. Callers hold the device's lock."""

    def __init__(self, device: Device) -> None:
        self.state: State = "held"
        self.staging: Staging | None = None  # of the last run
        self._device, self._recorder = device, device.api.record()
        self._touched: dict[int, Sequence[GpuBuffer]] = {}  # by the id of the sequence
        self._arenas: list[Arena] = []
        self._dispatches = 0

    def touch(self, buffers: Sequence[GpuBuffer]) -> None:
        """Note the buffers that the work uses."""
        self._touched[id(buffers)] = buffers

    def upload(self, uploads: Sequence[tuple[GpuBuffer, np.ndarray]]) -> None:
        """Record uploads, each an array and its buffer; the work recorded later sees them."""
        started, total = perf_counter(), 0
        needed = sum([room(data.nbytes) for _, data in uploads])
        if needed and (not self._arenas or self._arenas[-1].left < needed):
            self._arenas.append(self._device.uploads.take(needed))
        for target, data in uploads:
            nbytes = data.nbytes
            if nbytes:
                arena = self._arenas[-1]
                source, offset = arena.buffer.handle, arena.put(data)
                self._recorder.copy(source, offset, target.handle, target.offset, (nbytes + 3) & ~3)
                total += nbytes
        self._device.counters.bytes_uploaded += total
        self._device.traffic.uploaded(total, started, len(uploads))

    def copy(self, source: GpuBuffer, target: GpuBuffer, nbytes: int, offset: int = 0) -> None:
        """Record a copy of the first bytes of a buffer to an offset in another."""
        self._recorder.copy(source.handle, source.offset, target.handle, target.offset + offset, nbytes)

    def compute(self, steps: Steps, timer: Timer | None) -> None:
        if timer is not None:
            self.touch([timer.record(self._recorder, steps)])
        elif self._device.info.type == "software":  # it computes during the submit
            self._recorder.compute(steps)
        else:
            self._recorder.compute_soon(steps)
        self._dispatches += len(steps.groups)

    def drop(self) -> None:
        """Discard the work unless it is submitted already."""
        if self.state == "held":
            self.state = "dropped"

    def submit(self) -> None:
        for arena in self._arenas:
            arena.close()
        self.touch([arena.buffer for arena in self._arenas])
        with self._recorder as recorder:
            self._device.submit(recorder, [b for buffers in self._touched.values() for b in buffers])
        self.state = "submitted"
        self._device.counters.dispatches += self._dispatches
        for arena in self._arenas:
            self._device.uploads.give(arena)
        self._arenas, self._touched = [], {}


class GuardedRecording:
    """A block in which runs are recorded; it drops them if it fails. Callers hold the device's lock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.recording: Recording | None = None  # of runs that are not submitted yet
        self.forget()

    def forget(self) -> None:
        """Forget which buffers hold which bytes, so that the next run uploads everything."""
        self.syms: bytes | None = None  # contents of the buffer of symbolic ints
        self.params: dict[LoadedPlan, RecordedSteps] = {}  # the run whose parameters a plan's buffers hold
        self.copies: dict[int, tuple[GpuBuffer, DeviceTensor]] = {}  # inputs that are copies of tensors, by their id

    def __enter__(self) -> Recording:
        if self.recording is None:
            self.recording = Recording(self._device)
        return self.recording

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:
            self.drop()

    def drop(self) -> None:
        """Discard what was recorded; it never runs."""
        self.forget()
        if self.recording is not None:
            self.recording.drop()
            self.recording = None

    def flush(self) -> None:
        """Submit what was recorded."""
        if self.recording is not None:
            with self as recording:
                recording.submit()
                self.recording = None

    def write(self, target: GpuBuffer, data: np.ndarray) -> Recording:
        """Submit what was recorded, then write a large array in pieces; return the next recording."""
        self.flush()
        self._device.write(target, np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
        return self.__enter__()
