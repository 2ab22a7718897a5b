"""Outputs of a run: in a staging buffer on their way to the host, or left on the GPU as a `DeviceTensor`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import numpy as np

from ..dtypes import DType
from ..errors import Closed, DeviceError, InvalidInput
from ..plan.plan import ALIGN, Expr, Number, Port, plain
from .buffers import GpuBuffer
from .repeats import GAVE_UP, StepGaveUp

if TYPE_CHECKING:
    from .checks import Argument
    from .device import Device
    from .loaded import ResolvedRun
    from .recording import Recording
    from .repeats import RunInFlight
    from .session import Session


class DeviceTensor:
    """An output of the session's last run.

    It is valid until the next run, reset or close of that session, or until its buffer is released with its plan.
    """

    __slots__ = ("_generation", "_owners", "buffer", "dtype", "origin", "session", "shape")

    def __init__(
        self,
        session: Session,
        buffer: GpuBuffer,
        dtype: DType,
        shape: tuple[int, ...],
        generation: int,
        origin: Pending,
    ) -> None:
        self.origin = ref(origin)  # its run
        self.session, self.buffer, self.dtype, self.shape = session, buffer, dtype, shape
        self._generation, self._owners = generation, buffer.owners

    def __repr__(self) -> str:
        return f"<DeviceTensor {self.dtype.value}{list(self.shape)} on {self.session.device.target.name}>"

    @property
    def nbytes(self) -> int:
        return self.dtype.size * math.prod(self.shape)

    def check_fresh(self) -> None:
        """Raise unless the buffer still holds the bytes of the run that made this tensor."""
        if self.session.closed:
            raise Closed("the session of this device tensor is closed")
        if (self._generation, self._owners) != (self.session.generation, self.buffer.owners):
            raise InvalidInput("this device tensor is from an earlier run: read it or pass it on before the next one")

    def numpy(self) -> np.ndarray:
        """Read the values back into a fresh array."""
        with self.session.device.lock:
            self.check_fresh()
            self.session.flush()
            self.session.device.in_flight.check()
            if not self.nbytes:
                return np.empty(self.shape, self.dtype.numpy)
            data = self.session.device.read(self.buffer, (self.nbytes + 3) & ~3)
            return np.ndarray(self.shape, self.dtype.numpy, data)


_MIN_STAGING = 1024  # bytes of a buffer
_MAX_FREE = 4  # staging buffers kept for reuse


def staging_bytes(nbytes: int) -> int:
    """Return the room that an output takes in a staging buffer."""
    return -(-nbytes // ALIGN) * ALIGN


class StagedOutput(NamedTuple):
    """An output in the staging buffer."""

    number: int
    buffer: int  # of the plan
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int  # whole words


class StagingLayout(NamedTuple):
    """The outputs that are read back, in order of their offsets."""

    outputs: tuple[StagedOutput, ...]
    nbytes: int  # with padding
    payload: int  # bytes without padding

    @staticmethod
    def of(outputs: Sequence[Port | Number], read: Sequence[int] | None) -> StagingLayout:
        """Lay out the outputs whose numbers are in `read` (None: all), leaving out ints."""
        staged, total, payload = [], 0, 0
        for number in range(len(outputs)) if read is None else read:
            port = outputs[number]
            if isinstance(port, Port):
                shape, nbytes = tuple(map(plain, port.shape)), port.nbytes
                staged.append(StagedOutput(number, port.buffer, port.dtype.numpy, shape, total, (nbytes + 3) & ~3))
                total += staging_bytes(nbytes)
                payload += nbytes
        return StagingLayout(tuple(staged), total, payload)


class Staging:
    """A staging buffer in use. Runs of one recording share it and its mapping."""

    __slots__ = ("_counted", "buffer", "used", "users")

    def __init__(self, buffer: GpuBuffer) -> None:
        self.buffer = buffer
        self.used = self.users = 0
        self._counted = False

    def take(self, nbytes: int) -> int:
        """Add one run; return the offset of its results."""
        offset = self.used
        self.used += nbytes
        self.users += 1
        return offset

    def view(self, device: Device) -> memoryview:
        """Wait for the work; return all results."""
        view = self.buffer.read(device, self.used)
        device.counters.readbacks += not self._counted
        self._counted = True
        return view

    def leave(self) -> bool:
        """Drop one user; return True if it was the last, and the buffer is unmapped and free."""
        self.users -= 1
        if self.users == 0 and self.buffer.state == "mapped":
            self.buffer.unmap()
        return self.users == 0


class StagingPool:
    """The free staging buffers of a session. Callers hold the session's lock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[GpuBuffer] = []
        self._closed = False

    def take(self, nbytes: int) -> GpuBuffer:
        while self._free:
            buffer = self._free.pop()
            if buffer.nbytes >= nbytes and buffer.state == "ready":
                return buffer
            self._device.release(buffer)
        return self._device.buffer("outputs", max(nbytes, _MIN_STAGING), "staging")

    def give(self, buffer: GpuBuffer) -> None:
        """Reuse the buffer for another run; that run's copy comes later in the queue."""
        if len(self._free) < _MAX_FREE and not self._closed:
            self._free.append(buffer)
        else:
            self._device.release(buffer)

    def close(self) -> None:
        self._closed = True
        while self._free:
            self._device.release(self._free.pop())


@dataclass(eq=False)
class Pending:
    """A run that was started. `outputs` are on the device (ints are known already); `result` waits and reads.

    If `result` is interrupted, it can be called again.
    """

    _session: Session
    _buffers: Sequence[GpuBuffer]  # of the plan
    _run: ResolvedRun
    _recording: Recording
    _layout: StagingLayout
    _staging: Staging | None  # None if nothing is read
    _offset: int  # in the staging buffer
    _generation: int
    _waited: bool  # workgroups may have waited for each other; the counter of arrivals follows the outputs
    in_flight: RunInFlight | None = None
    repetition: Pending | None = None  # of a run that gave up
    _result: list[Argument] | None = None

    @cached_property
    def outputs(self) -> list[DeviceTensor | int]:
        return [self._output(o) for o in self._run.recorded.outputs]

    @property
    def dropped(self) -> bool:
        """Return whether the run was batched with one that failed."""
        return self._recording.state == "dropped"

    def _output(self, o: Port | Number) -> DeviceTensor | int:
        if isinstance(o, Port):
            return DeviceTensor(self._session, self._buffers[o.buffer], o.dtype, o.shape, self._generation, self)  # type: ignore[arg-type]
        return int(self._run.ints[o.row] if isinstance(o, Expr) else o)

    def result(self) -> list[Argument]:
        """Wait; return arrays for the outputs that are read, device tensors for the others."""
        if self._result is None:
            try:
                arrays = self._read()
            except StepGaveUp:
                arrays = self._repeat()
            outputs = self._run.recorded.outputs
            self._result = [arrays[n] if n in arrays else self.outputs[n] for n in range(len(outputs))]
            self._free()
        return self._result

    def discard(self) -> None:
        """Give up the result."""
        if self._result is None:
            self._result = list(self.outputs)
            self._free()

    def _read(self) -> dict[int, np.ndarray]:
        """Wait; return fresh arrays of the outputs to read, by their numbers."""
        session, recording = self._session, self._recording
        with session.lock:
            session.check_open()
            if recording.state == "held":
                session.flush()
            if recording.state != "submitted":
                raise DeviceError("this run was batched with one that failed; it was not submitted")
            if self._staging is None:
                return {p.number: np.empty(p.shape, p.dtype) for p in self._layout.outputs}
            started = perf_counter()
            view = self._staging.view(session.device)
            arrays = {p.number: _array(view, self._offset, p) for p in self._layout.outputs}
            session.device.traffic.read(self._layout.payload, started)
            if self._waited and view[self._offset + self._layout.nbytes :].cast("I")[0] >= GAVE_UP:
                raise StepGaveUp
            if self.in_flight is not None:
                with session.device.lock:
                    session.device.in_flight.right(self.in_flight)
            return arrays

    def _repeat(self) -> dict[int, np.ndarray]:
        """Repeat this run and all later ones; return arrays of the outputs to read."""
        with self._session.lock, self._session.device.lock:
            if self.repetition is None or self._session.device.in_flight.repeating:
                self._session.device.in_flight.repeat()
        if self.repetition is None:
            raise DeviceError("this run gave up, and an earlier one could not be repeated: call the method again")
        results = self.repetition.result()
        return {p.number: results[p.number] for p in self._layout.outputs}  # type: ignore[misc]

    def _free(self) -> None:
        with self._session.lock:
            if self.repetition is not None:
                self.repetition.discard()
            if self._staging is not None and self._staging.leave():
                self._recording.staging = None
                self._session.staging.give(self._staging.buffer)


def _array(view: memoryview, offset: int, staged: StagedOutput) -> np.ndarray:
    if not staged.nbytes:
        return np.empty(staged.shape, staged.dtype)
    mapped: np.ndarray = np.ndarray(staged.shape, staged.dtype, view, offset + staged.offset)
    return mapped.copy()
