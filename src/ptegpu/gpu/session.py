"""Runs the plans of one graph: buffers by name, one compute pass and one submit per run, one read back at its end.

Knows nothing of operators or shapes: inputs arrive in the device's dtype and in the plan's shapes. Two threads on
one session take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

import numpy as np

from ..errors import Closed, DeviceError, InvalidInput
from ..plan.plan import Plan, Port
from . import native
from .buffers import GpuBuffer
from .device import Device
from .limits import check, staging_bytes
from .pipelines import Pipeline
from .store import BufferStore, SharedConstants
from .submit import Commands, submit
from .tensor import DeviceTensor
from .timer import Timer

Tensor: TypeAlias = np.ndarray | DeviceTensor

_MIN_STAGING = 256


@dataclass(frozen=True, slots=True)
class Reading:
    """Which outputs are read, each with its place in the staging buffer; no buffer when there are no bytes to read."""

    places: tuple[tuple[int, int], ...]  # output, offset
    nbytes: int
    staging: GpuBuffer | None


class Prepared:
    """A plan made ready on a session: its buffers in the plan's order, and what the recording loop replays."""

    __slots__ = ("buffers", "pipelines", "plan", "session", "steps", "syms")

    def __init__(self, session: Session, plan: Plan, buffers: list[GpuBuffer], pipelines: Sequence[Pipeline]) -> None:
        self.session: Session | None = session
        self.plan, self.buffers, self.pipelines = plan, buffers, pipelines
        self.syms = next((buffer for buffer in plan.buffers if buffer.role == "syms"), None)
        self.steps: list[native.Step] = []

    def end(self) -> None:
        self.session, self.steps, self.pipelines = None, [], ()


class Pending:
    """A run on its way. `outputs` are on the device; `result` waits and reads, once. If that is interrupted, it can be
    called again."""

    def __init__(self, session: Session, plan: Plan, reading: Reading, outputs: list[DeviceTensor]) -> None:
        self.outputs = outputs
        self._session, self._plan, self._reading = session, plan, reading
        self._result: list[Tensor] | None = None

    def result(self) -> list[Tensor]:
        """Arrays for the outputs that are read, device tensors for the others."""
        if self._result is None:
            arrays = self._session.read(self._plan, self._reading)
            self._result = [arrays.get(number, output) for number, output in enumerate(self.outputs)]
            self._session.free(self._reading)
        return self._result

    def discard(self) -> None:
        """Nobody will ask for the result."""
        if self._result is None:
            self._result = list(self.outputs)
            self._session.free(self._reading)


class Session:
    """One graph on a device; close it, or use it as a context manager. Sessions given one `constants` share those."""

    def __init__(self, device: Device, constants: SharedConstants | None = None) -> None:
        self.device = device
        self.generation = 0  # of the outputs that stay on the device
        self.timer: Timer | None = None  # that measures the runs
        self._lock = threading.RLock()
        self._store = BufferStore(device, SharedConstants() if constants is None else constants)
        self._prepared: list[Prepared] = []
        self._staging: GpuBuffer | None = None
        self._syms: bytes | None = None  # what the syms buffer holds
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def prepare(self, plan: Plan) -> Prepared:
        """Checks every limit, then allocates what is not there yet, uploads and compiles. All or nothing."""
        with self._lock, self.device.lock:
            self._check_open()
            check(plan, self.device.target)
            missing = self._store.missing(plan)
            self._store.check_memory(plan, missing)
            pipelines = [self.device.pipeline(kernel) for kernel in plan.kernels]
            try:
                self._store.add(plan, missing)
                prepared = Prepared(self, plan, [self._store[buffer.name] for buffer in plan.buffers], pipelines)
                self._bind(prepared)
            except BaseException:
                self._store.drop([buffer.name for buffer in missing])
                raise
            self._prepared.append(prepared)
            return prepared

    def release(self, prepared: Prepared) -> None:
        """Forgets a plan: its bind groups, its parameters, and the temporaries that only it has."""
        with self._lock, self.device.lock:
            if prepared.session is not self:
                return
            prepared.end()
            self._prepared.remove(prepared)
            used = {buffer.name for other in self._prepared for buffer in other.plan.buffers}
            own = [b.name for b in prepared.plan.buffers if b.role in ("params", "temp") and b.name not in used]
            self._store.drop(own)

    def run(
        self,
        prepared: Prepared,
        inputs: Sequence[Tensor],
        syms: Sequence[int] | None = None,
        *,
        read: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """One run. Outputs listed in `read` (all when None) come back as arrays, the others stay on the device."""
        return self.start(prepared, inputs, syms, read=read).result()

    def start(
        self,
        prepared: Prepared,
        inputs: Sequence[Tensor],
        syms: Sequence[int] | None = None,
        *,
        read: Sequence[int] | None = None,
    ) -> Pending:
        """A run that is not waited for: its outputs on the device may go into the next one before it ends."""
        with self._lock:
            self._check_open()
            if prepared.session is not self:
                raise DeviceError(f"plan {prepared.plan.name} was prepared by another session, or released")
            given = self._accept(prepared, inputs)
            words = _words(prepared, syms)
            reading = self._reading(prepared.plan, read)
            with self.device.lock:
                for value in given:
                    if isinstance(value, DeviceTensor):
                        value.check_fresh()
                self.generation += 1  # even a run that is interrupted on the way may have overwritten the last outputs
                copies = self._write(prepared, given, words)
                submit(self.device, self._record(prepared, copies, reading))
                self.device.counters.dispatches += len(prepared.steps)
            outputs = [
                DeviceTensor(self, prepared.buffers[port.buffer], port.dtype, port.shape, self.generation)
                for port in prepared.plan.outputs
            ]
            pending = Pending(self, prepared.plan, reading, outputs)
            if self.timer is not None:
                pending.result()
                self.timer.collect(prepared)
            return pending

    def reset(self) -> None:
        """States back to their first bytes."""
        with self._lock, self.device.lock:
            self._check_open()
            self.device.check_alive()
            self.generation += 1
            self._store.reset()

    def close(self) -> None:
        """Gives every buffer back; whatever uses the session afterwards raises Closed."""
        with self._lock, self.device.lock:
            self._closed = True
            for prepared in self._prepared:
                prepared.end()
            self._prepared = []
            if self._staging is not None:
                self.device.release(self._staging)
                self._staging = None
            self._store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the session is closed")

    def _bind(self, prepared: Prepared) -> None:
        groups: dict[tuple[object, ...], native.Handle] = {}
        last = None
        for dispatch in prepared.plan.dispatches:
            if 0 in dispatch.grid:
                continue
            pipeline = prepared.pipelines[dispatch.kernel]
            key = (id(pipeline), dispatch.bindings)
            if key not in groups:
                entries = [(prepared.buffers[b.buffer], b.offset, b.nbytes) for b in dispatch.bindings]
                groups[key] = self.device.bind_group(pipeline, entries)
            prepared.steps.append((None if pipeline is last else pipeline.handle, groups[key], *dispatch.grid))
            last = pipeline

    def _accept(self, prepared: Prepared, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs that fit their ports; tensors that cannot be copied on this device become arrays."""
        ports = prepared.plan.inputs
        if len(inputs) != len(ports):
            raise InvalidInput(f"plan {prepared.plan.name} takes {len(ports)} inputs, {len(inputs)} given")
        own = {id(prepared.buffers[port.buffer]) for port in ports}
        accepted: list[Tensor] = []
        for number, (given, port) in enumerate(zip(inputs, ports, strict=True)):
            _check_fits(number, port, given)
            if isinstance(given, DeviceTensor):
                given.check_fresh()
                target = prepared.buffers[port.buffer]
                overwritten = id(given.buffer) in own and given.buffer is not target
                if given.session.device is not self.device or overwritten:
                    given = given.numpy()
            accepted.append(given)
        return accepted

    def _reading(self, plan: Plan, read: Sequence[int] | None) -> Reading:
        places, total = [], 0
        for number in range(len(plan.outputs)) if read is None else read:
            places.append((number, total))
            total += staging_bytes(plan.outputs[number].nbytes)
        staging = self._staging
        if total and (staging is None or staging.nbytes < total or staging.state != "ready"):
            self._staging = None
            if staging is not None:
                self.device.release(staging)
            staging = self.device.buffer("outputs", max(total, _MIN_STAGING), "staging")
        self._staging = None if total else staging  # until the run is read
        return Reading(tuple(places), total, staging if total else None)

    def _write(
        self, prepared: Prepared, given: Sequence[Tensor], words: bytes | None
    ) -> list[tuple[DeviceTensor, Port]]:
        """Writes arrays and symbolic ints; returns the tensors that are still to be copied on the device."""
        copies = []
        if prepared.syms is not None and words is not None and words != self._syms:
            self._syms = None  # until they are written
            self.device.write(self._store[prepared.syms.name], words)
            self._syms = words
        for value, port in zip(given, prepared.plan.inputs, strict=True):
            target = prepared.buffers[port.buffer]
            if not isinstance(value, DeviceTensor):
                self.device.write(target, _bytes_of(value))
            elif value.buffer is not target and port.nbytes:
                copies.append((value, port))
        return copies

    def _record(self, prepared: Prepared, copies: Sequence[tuple[DeviceTensor, Port]], reading: Reading) -> Commands:
        plan, buffers = prepared.plan, prepared.buffers
        touched = [*buffers, *(tensor.buffer for tensor, _ in copies)]
        with native.Recorder(self.device.handle) as recorder:
            for tensor, port in copies:
                nbytes = _word_aligned(port.nbytes)
                recorder.copy(tensor.buffer.handle, 0, buffers[port.buffer].handle, 0, nbytes)
            if prepared.steps and self.timer is not None:
                touched.append(self.timer.record(recorder, prepared.steps))
            elif prepared.steps:
                recorder.compute(prepared.steps)
            for copy in plan.copies:
                recorder.copy(buffers[copy.source].handle, 0, buffers[copy.target].handle, 0, copy.nbytes)
            if reading.staging is not None:
                touched.append(reading.staging)
                for number, place in reading.places:
                    port = plan.outputs[number]
                    if port.nbytes:
                        nbytes = _word_aligned(port.nbytes)
                        recorder.copy(buffers[port.buffer].handle, 0, reading.staging.handle, place, nbytes)
            return Commands(recorder, touched)

    def read(self, plan: Plan, reading: Reading) -> dict[int, np.ndarray]:
        """The outputs of a run, when it is done."""
        with self._lock:
            self._check_open()
            if reading.staging is None:
                return {number: _empty(plan.outputs[number]) for number, _ in reading.places}
            started = perf_counter()
            view = reading.staging.read(self.device, reading.nbytes)
            try:
                self.device.counters.readbacks += 1
                return {number: _array(view, place, plan.outputs[number]) for number, place in reading.places}
            finally:
                reading.staging.unmap()
                self.device.traffic.read(sum(plan.outputs[k].nbytes for k, _ in reading.places), started)

    def free(self, reading: Reading) -> None:
        """The staging buffer may serve another run: that one's copy comes after, in the queue's order."""
        with self._lock:
            if reading.staging is None:
                return
            if self._staging is None and not self._closed:
                self._staging = reading.staging
            else:
                self.device.release(reading.staging)


def _words(prepared: Prepared, syms: Sequence[int] | None) -> bytes | None:
    """What the syms buffer must hold; None where the plan reads none."""
    if prepared.syms is None:
        return None
    where, room = f"plan {prepared.plan.name}", prepared.syms.nbytes
    if syms is None:
        raise InvalidInput(f"{where} needs symbolic ints, but none were given")
    try:
        words = np.array(syms, dtype=np.int32).tobytes()
    except OverflowError:
        raise InvalidInput(f"{where}: a symbolic int does not fit 32 bits: {list(syms)}") from None
    if len(words) > room:
        raise InvalidInput(f"{where}: {len(syms)} symbolic ints do not fit {room} bytes")
    return words


def _check_fits(number: int, port: Port, given: np.ndarray | DeviceTensor) -> None:
    dtype = given.dtype.numpy if isinstance(given, DeviceTensor) else given.dtype
    if dtype != port.dtype.numpy or tuple(given.shape) != port.shape:
        wanted, got = f"{port.dtype.value}{list(port.shape)}", f"{dtype}{list(given.shape)}"
        raise InvalidInput(f"input {number} ({port.name}) must be {wanted}, not {got}")


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _word_aligned(nbytes: int) -> int:
    return (nbytes + 3) & ~3


def _empty(port: Port) -> np.ndarray:
    return np.empty(port.shape, port.dtype.numpy)


def _array(view: memoryview, place: int, port: Port) -> np.ndarray:
    array = _empty(port)
    if array.nbytes:
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(view, np.uint8, array.nbytes, place)
    return array
