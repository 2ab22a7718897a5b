"""Runs the plans of one graph: buffers by name, one compute pass and one submit per run, one read back at its end.

Knows nothing of operators or shapes: inputs arrive in the device's dtype and in the plan's shapes. Two threads on
one session take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..errors import Closed, DeviceError, InvalidInput, OutOfMemory
from ..plan.plan import Buffer, Plan, Port
from . import native
from .buffers import GpuBuffer, Kind
from .device import Device
from .limits import check, first_bytes, staging_bytes
from .pipelines import Pipeline
from .submit import Commands, submit
from .tensor import DeviceTensor

Tensor: TypeAlias = np.ndarray | DeviceTensor

_MIN_STAGING = 256


class Prepared:
    """A plan made ready on a session: its buffers in the plan's order, and what the recording loop replays."""

    __slots__ = ("buffers", "groups", "plan", "session", "steps", "syms", "touched")

    def __init__(self, session: Session, plan: Plan, buffers: list[GpuBuffer]) -> None:
        self.session: Session | None = session
        self.plan, self.buffers = plan, buffers
        self.touched = tuple({id(buffer): buffer for buffer in buffers}.values())
        self.syms = next((buffer for buffer in plan.buffers if buffer.role == "syms"), None)
        self.steps: list[native.Step] = []
        self.groups: list[native.BindGroup] = []


class Session:
    """The buffers of one graph on a device. Close it, or use it as a context manager."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.generation = 0  # of the outputs that stay on the device
        self._lock = threading.RLock()
        self._buffers: dict[str, GpuBuffer] = {}
        self._first: dict[str, bytes | memoryview] = {}  # the first bytes of states and parameters; the rest is zeros
        self._states: list[str] = []
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
            missing = self._missing(plan)
            self._check_memory(plan, missing)
            try:
                pipelines = [self.device.pipeline(kernel) for kernel in plan.kernels]
                self._allocate(plan, missing)
                prepared = Prepared(self, plan, [self._buffers[buffer.name] for buffer in plan.buffers])
                self._bind(prepared, pipelines)
            except BaseException:
                self._drop([buffer.name for buffer in missing if buffer.name in self._buffers])
                raise
            self._prepared.append(prepared)
            return prepared

    def release(self, prepared: Prepared) -> None:
        """Forgets a plan: its bind groups and its parameters. The graph's other buffers stay."""
        with self._lock:
            if prepared.session is not self:
                return
            self._prepared.remove(prepared)
            prepared.session = None
            prepared.groups, prepared.steps = [], []
            used = {buffer.name for other in self._prepared for buffer in other.plan.buffers}
            self._drop([b.name for b in prepared.plan.buffers if b.role == "params" and b.name not in used])

    def run(
        self,
        prepared: Prepared,
        inputs: Sequence[Tensor],
        syms: Sequence[int] | None = None,
        *,
        read: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """One run. Outputs listed in `read` (all when None) come back as arrays, the others stay on the device."""
        with self._lock:
            self._check_open()
            if prepared.session is not self:
                raise DeviceError(f"plan {prepared.plan.name} was prepared by another session, or released")
            plan = prepared.plan
            given = self._accept(prepared, inputs)
            places, staging = self._staging_for(plan, range(len(plan.outputs)) if read is None else read)
            with self.device.lock:
                commands = self._record(prepared, given, syms, places, staging)
                submission = submit(self.device, commands)
                self.device.counters.dispatches += len(prepared.steps)
            arrays = self._read(plan, places, staging, submission)
            return [
                arrays[number]
                if number in arrays
                else DeviceTensor(self, prepared.buffers[port.buffer], port.dtype, port.shape, self.generation)
                for number, port in enumerate(plan.outputs)
            ]

    def reset(self) -> None:
        """States back to their first bytes."""
        with self._lock, self.device.lock:
            self._check_open()
            self.device.check_alive()
            self.generation += 1
            self.device.clear([self._buffers[name] for name in self._states])
            for name in self._states:
                self.device.write(self._buffers[name], self._first[name])

    def close(self) -> None:
        """Gives every buffer back; whatever uses the session afterwards raises Closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for prepared in self._prepared:
                prepared.groups, prepared.steps = [], []
            self._prepared = []
            if self._staging is not None:
                self.device.release(self._staging)
                self._staging = None
            self._drop(list(self._buffers))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the session is closed")

    def _missing(self, plan: Plan) -> list[Buffer]:
        """The buffers that no earlier plan brought; those it did bring must agree."""
        missing = []
        for buffer in plan.buffers:
            where, found = f"plan {plan.name}: buffer {buffer.name}", self._buffers.get(buffer.name)
            if found is None:
                missing.append(buffer)
            elif found.nbytes != buffer.nbytes:
                raise DeviceError(f"{where} has {buffer.nbytes} bytes, but {found.nbytes} in an earlier plan")
            elif buffer.role == "params" and self._first[buffer.name] != plan.params:
                raise DeviceError(f"{where} holds the parameters of another plan")
        return missing

    def _check_memory(self, plan: Plan, missing: Sequence[Buffer]) -> None:
        needed = sum(buffer.nbytes for buffer in missing)
        available = self.device.available_bytes()
        if available is not None and needed > available + self.device.pool.nbytes:
            where = f"plan {plan.name} on {self.device.target.name}"
            raise OutOfMemory(f"{where} needs {needed} more bytes; {available} are available")

    def _allocate(self, plan: Plan, missing: Sequence[Buffer]) -> None:
        """Makes buffers and gives each its first bytes."""
        for buffer in missing:
            kind: Kind = "uniform" if buffer.role in ("params", "syms") else "storage"
            self._buffers[buffer.name] = self.device.buffer(buffer.name, buffer.nbytes, kind)
        made = [self._buffers[buffer.name] for buffer in missing]
        self.device.clear([buffer for buffer in made if buffer.dirty])
        for buffer, place in zip(missing, made, strict=True):
            first = first_bytes(plan, buffer)
            self.device.write(place, first)
            if buffer.role in ("state", "params"):
                self._first[buffer.name] = first
            if buffer.role == "state":
                self._states.append(buffer.name)
            if buffer.role == "syms":
                self._syms = None

    def _bind(self, prepared: Prepared, pipelines: Sequence[Pipeline]) -> None:
        groups: dict[tuple[object, ...], native.BindGroup] = {}
        last = None
        for dispatch in prepared.plan.dispatches:
            if 0 in dispatch.grid:
                continue
            pipeline = pipelines[dispatch.kernel]
            key = (id(pipeline), dispatch.bindings)
            if key not in groups:
                entries = [(prepared.buffers[b.buffer], b.offset, b.nbytes) for b in dispatch.bindings]
                groups[key] = self.device.bind_group(pipeline, entries)
            prepared.steps.append((None if pipeline is last else pipeline.handle, groups[key].handle, *dispatch.grid))
            last = pipeline
        prepared.groups = list(groups.values())

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            self._first.pop(name, None)
            self.device.release(self._buffers.pop(name))
        self._states = [name for name in self._states if name in self._buffers]

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

    def _staging_for(self, plan: Plan, read: Sequence[int]) -> tuple[dict[int, int], GpuBuffer | None]:
        """Where in the staging buffer each output that is read goes, and the buffer; None when nothing is read."""
        places: dict[int, int] = {}
        total = 0
        for number in read:
            places[number] = total
            total += staging_bytes(plan.outputs[number].nbytes)
        if total and (self._staging is None or self._staging.nbytes < total):
            if self._staging is not None:
                self.device.release(self._staging)
                self._staging = None
            self._staging = self.device.buffer("outputs", max(total, _MIN_STAGING), "staging")
        return places, self._staging if total else None

    def _record(
        self,
        prepared: Prepared,
        given: Sequence[Tensor],
        syms: Sequence[int] | None,
        places: dict[int, int],
        staging: GpuBuffer | None,
    ) -> Commands:
        plan, buffers = prepared.plan, prepared.buffers
        touched = list(prepared.touched)
        with native.Recorder(self.device.handle) as recorder:
            for value, port in zip(given, plan.inputs, strict=True):
                target = buffers[port.buffer]
                if not isinstance(value, DeviceTensor):
                    self.device.write(target, _bytes_of(value))
                elif value.buffer is not target and port.nbytes:
                    value.check_fresh()
                    recorder.copy(value.buffer.handle, 0, target.handle, 0, _word_aligned(port.nbytes))
                    touched.append(value.buffer)
            self._write_syms(prepared, syms)
            if prepared.steps:
                recorder.compute(prepared.steps)
            for copy in plan.copies:
                recorder.copy(buffers[copy.source].handle, 0, buffers[copy.target].handle, 0, copy.nbytes)
            for number, place in places.items():
                port = plan.outputs[number]
                if port.nbytes and staging is not None:
                    nbytes = _word_aligned(port.nbytes)
                    recorder.copy(buffers[port.buffer].handle, 0, staging.handle, place, nbytes)
            if staging is not None:
                touched.append(staging)
            self.generation += 1
            return Commands(recorder.finish(), touched)

    def _write_syms(self, prepared: Prepared, syms: Sequence[int] | None) -> None:
        if prepared.syms is None:
            return
        if syms is None:
            raise InvalidInput(f"plan {prepared.plan.name} reads symbolic ints, none given")
        where, room = f"plan {prepared.plan.name}", prepared.syms.nbytes
        try:
            words = np.array(syms, dtype=np.int32).tobytes()
        except OverflowError:
            raise InvalidInput(f"{where}: a symbolic int does not fit 32 bits: {list(syms)}") from None
        if len(words) > room:
            raise InvalidInput(f"{where}: {len(syms)} symbolic ints do not fit {room} bytes")
        if words != self._syms:
            self.device.write(self._buffers[prepared.syms.name], words)
            self._syms = words

    def _read(
        self, plan: Plan, places: dict[int, int], staging: GpuBuffer | None, submission: int
    ) -> dict[int, np.ndarray]:
        if staging is None:
            return {number: _empty(plan.outputs[number]) for number in places}
        last = max(places, key=lambda number: places[number])
        view = staging.read(self.device.handle, places[last] + staging_bytes(plan.outputs[last].nbytes), submission)
        self.device.counters.readbacks += 1
        arrays = {number: _array(view, place, plan.outputs[number]) for number, place in places.items()}
        view.release()
        staging.unmap()
        return arrays


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
