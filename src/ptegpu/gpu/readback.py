"""Outputs on their way back: where each is in a staging buffer, and a run that is not waited for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import DeviceError
from ..plan.plan import Expr, Number, Port, plain
from .buffers import GpuBuffer
from .limits import staging_bytes
from .tensor import DeviceTensor

if TYPE_CHECKING:
    from .device import Device
    from .inputs import Argument
    from .loaded import LoadedPlan, ResolvedRun
    from .recording import Recording
    from .session import Session

_MIN_STAGING = 1024  # bytes of a buffer
_MAX_FREE = 4  # staging buffers that are kept


class Place(NamedTuple):
    """Where an output that is read is in the staging buffer."""

    number: int
    buffer: int  # of the plan
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int  # whole words


class Layout(NamedTuple):
    """The outputs that are read, one behind the other."""

    places: tuple[Place, ...]
    nbytes: int  # with padding
    carried: int  # without

    @staticmethod
    def of(outputs: Sequence[Port | Number], read: Sequence[int] | None) -> Layout:
        """Lay out the outputs whose numbers are in `read` (None: all), leaving out ints."""
        places, total, carried = [], 0, 0
        for number in range(len(outputs)) if read is None else read:
            port = outputs[number]
            if isinstance(port, Port):
                shape, nbytes = tuple(map(plain, port.shape)), port.nbytes
                places.append(Place(number, port.buffer, port.dtype.numpy, shape, total, (nbytes + 3) & ~3))
                total += staging_bytes(nbytes)
                carried += nbytes
        return Layout(tuple(places), total, carried)


class Staging:
    """Where results come back. Runs of one recording share it, and its mapping."""

    __slots__ = ("_counted", "buffer", "used", "users")

    def __init__(self, buffer: GpuBuffer) -> None:
        self.buffer = buffer
        self.used = self.users = 0
        self._counted = False

    def take(self, nbytes: int) -> int:
        """Return the offset of the results of one more run."""
        offset = self.used
        self.used += nbytes
        self.users += 1
        return offset

    def view(self, device: Device) -> memoryview:
        """Wait for the work, and return all results."""
        view = self.buffer.read(device, self.used)
        device.counters.readbacks += not self._counted
        self._counted = True
        return view

    def leave(self) -> bool:
        """Drop one user; return True if it was the last, so that the buffer is free, and unmapped."""
        self.users -= 1
        if self.users == 0 and self.buffer.state == "mapped":
            self.buffer.unmap()
        return self.users == 0


class StagingPool:
    """The staging buffers of a session that are free. Its caller holds the session's lock."""

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
        """Let another run use the buffer: that one's copy comes after, in the queue's order."""
        if len(self._free) < _MAX_FREE and not self._closed:
            self._free.append(buffer)
        else:
            self._device.release(buffer)

    def close(self) -> None:
        self._closed = True
        while self._free:
            self._device.release(self._free.pop())


class Pending:
    """A run on its way. `outputs` are on the device (ints are known); `result` waits and reads, once. If that is
    interrupted, it can be called again."""

    def __init__(
        self,
        session: Session,
        loaded: LoadedPlan,
        run: ResolvedRun,
        recording: Recording,
        layout: Layout,
        staging: Staging | None,  # None: there are no bytes to read
        offset: int,
    ) -> None:
        self._session, self._buffers, self._run, self._recording = session, loaded.buffers, run, recording
        self._layout, self._staging, self._offset = layout, staging, offset
        self._generation = session.generation
        self._result: list[Argument] | None = None

    @cached_property
    def outputs(self) -> list[DeviceTensor | int]:
        return [self._output(o) for o in self._run.recorded.outputs]

    def _output(self, o: Port | Number) -> DeviceTensor | int:
        if isinstance(o, Port):
            return DeviceTensor(self._session, self._buffers[o.buffer], o.dtype, o.shape, self._generation)  # type: ignore[arg-type]
        return int(self._run.ints[o.row] if isinstance(o, Expr) else o)

    def result(self) -> list[Argument]:
        """Wait; return arrays for the outputs that are read, device tensors for the others."""
        if self._result is None:
            arrays = self._read()
            outputs = self._run.recorded.outputs
            self._result = [arrays[n] if n in arrays else self.outputs[n] for n in range(len(outputs))]
            self._free()
        return self._result

    def discard(self) -> None:
        """Give the result up."""
        if self._result is None:
            self._result = list(self.outputs)
            self._free()

    def _read(self) -> dict[int, np.ndarray]:
        """Wait; return fresh arrays of the outputs that are read, by their numbers."""
        session, recording = self._session, self._recording
        with session.lock:
            session.check_open()
            if recording.state == "held":
                session.flush()
            if recording.state != "submitted":
                raise DeviceError("this run was batched with one that failed; it was not submitted")
            if self._staging is None:
                return {p.number: np.empty(p.shape, p.dtype) for p in self._layout.places}
            started = perf_counter()
            view = self._staging.view(session.device)
            arrays = {p.number: _array(view, self._offset, p) for p in self._layout.places}
            session.device.traffic.read(self._layout.carried, started)
            return arrays

    def _free(self) -> None:
        with self._session.lock:
            if self._staging is not None and self._staging.leave():
                self._recording.staging = None
                self._session.staging.give(self._staging.buffer)


def _array(view: memoryview, offset: int, place: Place) -> np.ndarray:
    """Copy an output out of a view."""
    if not place.nbytes:
        return np.empty(place.shape, place.dtype)
    mapped: np.ndarray = np.ndarray(place.shape, place.dtype, view, offset + place.offset)
    return mapped.copy()
