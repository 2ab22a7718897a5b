"""What a session has recorded and not submitted yet, and what it takes back where a call fails.

A signal handler may raise between any two steps of Python code, and the device may be lost in any call of its library.
What was recorded then never runs, so nothing that it was to write counts as written: the next run uploads it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .buffers import GpuBuffer
from .device import Device
from .recording import Recording
from .tensor import DeviceTensor

if TYPE_CHECKING:
    from .loaded import LoadedPlan, RecordedSteps


class GuardedRecording:
    """A block in which runs are recorded. Its caller holds the device's lock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.recording: Recording | None = None  # of runs that are not submitted yet
        self.forget()

    def forget(self) -> None:
        """Count nothing as written."""
        self.syms: bytes | None = None  # what the buffer of symbolic ints holds
        self.params: dict[LoadedPlan, RecordedSteps] = {}  # whose parameters a plan's buffers hold
        self.copies: dict[int, tuple[GpuBuffer, DeviceTensor]] = {}  # inputs that are copies of tensors, by their id

    def __enter__(self) -> Recording:
        if self.recording is None:
            self.recording = Recording(self._device)
        return self.recording

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:
            self.drop()

    def drop(self) -> None:
        """Take back what was recorded: it never runs."""
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
        """Write a large array in pieces, behind what was recorded; return the recording that comes after it."""
        self.flush()
        self._device.write(target, np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
        return self.__enter__()
