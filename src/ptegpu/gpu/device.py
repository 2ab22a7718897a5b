"""An opened GPU: its target for kernel generators, its pipelines, buffers and submits, and counters."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal, Self

from ..errors import DeviceError, DeviceLost, InvalidInput, NoAdapter, OutOfMemory, SubmitError
from ..plan.plan import Kernel
from ..plan.target import DeviceClass, Persistent, Target, check_persistent
from ..progress import Progress, silent
from . import threads
from .buffers import BufferPool, GpuBuffer, Kind, Uploads
from .discovery import AdapterInfo, Engine, available_bytes, class_of, find_adapter, library, native_adapter
from .native import Handle, disown
from .pipelines import ComputePipeline, PipelineCache
from .recorder import Recorder
from .repeats import RunsInFlight
from .subgroups import subgroup_size
from .webgpu import MATRICES, NativeLimits

LimitSet = Literal["adapter", "browser"]

_BROWSER_LIMITS = {
    "max-bind-groups": 4,
    "max-bindings-per-bind-group": 1000,
    "max-storage-buffers-per-shader-stage": 8,
    "max-uniform-buffers-per-shader-stage": 12,
    "max-uniform-buffer-binding-size": 65536,
    "max-storage-buffer-binding-size": 134217728,
    "min-uniform-buffer-offset-alignment": 256,
    "min-storage-buffer-offset-alignment": 256,
    "max-buffer-size": 268435456,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
}
KEPT = 4  # 1/4 of a GPU's free memory may keep weights in the layout of its kernels
_COMPILE_THREADS = 8
_SPIN = 2e-3  # seconds of waiting for a GPU without a pause, since a pause ends some 60 µs late
_WRITE_CHUNK = 32 << 20  # bytes of one write, which the library stages in host memory
_WRITE_PENDING = 64 << 20  # staged bytes that are flushed to the GPU


class _Totals:
    """Figures that only grow."""

    __slots__: tuple[str, ...] = ()

    def snapshot(self) -> Self:
        return copy(self)

    def since(self, before: Self) -> Self:
        return type(self)(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))


@dataclass(slots=True)
class Counters(_Totals):
    """Work done on a device since it was opened."""

    buffers_created: int = 0
    bind_groups_created: int = 0
    pipelines_created: int = 0
    submits: int = 0
    dispatches: int = 0
    readbacks: int = 0
    bytes_uploaded: int = 0


@dataclass(slots=True)
class Traffic(_Totals):
    """Uploads and readbacks of a device since it was opened, and the seconds that the host spent on them."""

    uploads: int = 0
    upload_bytes: int = 0
    upload_seconds: float = 0.0
    readbacks: int = 0
    readback_bytes: int = 0
    readback_seconds: float = 0.0  # including the wait for the GPU

    def uploaded(self, nbytes: int, started: float, count: int = 1) -> None:
        self.uploads += count
        self.upload_bytes += nbytes
        self.upload_seconds += perf_counter() - started

    def read(self, nbytes: int, started: float) -> None:
        self.readbacks += 1
        self.readback_bytes += nbytes
        self.readback_seconds += perf_counter() - started


class Device:
    """A GPU device. Sessions share its pipelines and its pool; `lock` orders their recording and submitting."""

    def __init__(self, info: AdapterInfo, *, limits: LimitSet, f16: bool, subgroups: bool, matrices: bool) -> None:
        f16, subgroups = f16 and "shader-f16" in info.features, subgroups and "subgroups" in info.features
        shapes = tuple(m for m in info.matrices if f16 or "f16" not in m) if matrices and subgroups else ()
        self.timestamps = "timestamp-query" in info.features  # GPU time can be measured
        optional = {"shader-f16": f16, "subgroups": subgroups, MATRICES: bool(shapes)}
        engine = library(info.engine)
        features = [name for name in engine.features if name in info.features and optional.get(name, True)]
        required = _within(_BROWSER_LIMITS, info.limits) if limits == "browser" else {}
        self.api = engine(native_adapter(info), features, required)
        self.info, self.limits = info, limits
        if info.type != "software":  # a software adapter needs the processor itself
            self.api.spin = _SPIN
        self.lock = threads.Lock()
        self.counters = Counters()
        self.traffic = Traffic()
        self.pool, self.uploads = BufferPool(), Uploads(self)
        self._pipelines = PipelineCache(self.api)
        self.arrivals: GpuBuffer | None = None  # of workgroups in a dispatch; None if none wait for each other
        self.in_flight = RunsInFlight(self)
        self.measured: DeviceClass | None = None  # by `measure`
        self.resident = 0  # workgroups that may wait for each other inside a dispatch: see `residency.py`
        self.pending_bytes = 0  # written but not submitted yet
        self._lost: str | None = None
        self.target = _target(info, self.api.limits, f16=f16, subgroups=subgroups, matrices=shapes)
        if subgroups:
            self.target = replace(self.target, subgroup_size=subgroup_size(self))

    def __repr__(self) -> str:
        return f"<Device {self.info}>"

    @property
    def lost(self) -> bool:
        """Return whether the GPU is gone."""
        try:
            self.check_alive()
        except DeviceLost:
            return True
        return False

    def check_alive(self) -> None:
        """Raise DeviceLost if the GPU is gone."""
        if self._lost is not None:
            raise DeviceLost(self._lost)
        try:
            self.api.check_alive()
        except DeviceLost as error:
            self._lost = str(error)
            raise

    def check_persistent(self, persistent: Persistent) -> None:
        """Raise unless programs with this option can share the device, which was opened with its own."""
        if persistent == "off" and self.resident:
            raise InvalidInput(
                'this device was opened for persistent="auto" or "on": open another with persistent="off", or give its '
                "index"
            )
        if persistent == "on":
            from . import residency

            residency.require(self)

    def available_bytes(self) -> int | None:
        """Return the memory that new buffers may take; None if that is unknown."""
        return available_bytes(self.info)

    def buffer(self, name: str, nbytes: int, kind: Kind) -> GpuBuffer:
        """Return a buffer, either dirty from the pool or new."""
        with self.lock:
            buffer = self.pool.take(nbytes, kind)
            if buffer is None:
                return self._new_buffer(name, nbytes, kind)
            buffer.name = name
            return buffer

    def release(self, buffer: GpuBuffer) -> None:
        with self.lock:
            self.pool.give(buffer)

    def trim(self) -> None:
        """Destroy the buffers that nothing uses."""
        with self.lock:
            self.pool.clear()
            self.uploads.clear()

    def pipeline(self, kernel: Kernel) -> ComputePipeline:
        return self.pipelines([kernel])[0]

    def pipelines(self, kernels: Sequence[Kernel]) -> list[ComputePipeline]:
        """Return the pipelines of kernels; compile missing ones in parallel."""
        compiled = self._pipelines.find(kernels)
        return self.compile_kernels(kernels).result() if compiled is None else compiled

    def compile_kernels(
        self, kernels: Sequence[Kernel], progress: Progress = silent
    ) -> threads.ThreadJob[list[ComputePipeline]]:
        """Start to compile in another thread. It finishes even without a waiter, and later calls use its pipelines."""

        def report(phase: str, done: int, of: int) -> None:
            if not job.dropped:
                progress(phase, done, of)

        def work() -> list[ComputePipeline]:
            pipelines = self._pipelines.get_all(kernels, report)
            self.counters.pipelines_created = self._pipelines.compiled
            return pipelines

        job = threads.ThreadJob(work)
        threads.pool("compile ahead", _COMPILE_THREADS).put(job)
        return job

    def bind_group(self, pipeline: ComputePipeline, entries: Sequence[tuple[GpuBuffer, int, int]]) -> Handle:
        """Return a bind group of (buffer, offset, nbytes) for bindings 0, 1 and so on."""
        self.counters.bind_groups_created += 1
        return self.api.bind_group(pipeline.layout, [(b.handle, b.offset + o, n) for b, o, n in entries])

    def write(self, buffer: GpuBuffer, data: memoryview | bytes, offset: int = 0) -> None:
        """Write bytes into a buffer before the next submit. A tail of 1 to 3 bytes is padded with zeros."""
        started = perf_counter()
        view = memoryview(data).cast("B")
        aligned = len(view) & ~3
        with self.lock:
            for start in range(0, aligned, _WRITE_CHUNK):
                self._write(buffer, view[start : min(start + _WRITE_CHUNK, aligned)], offset + start)
            if aligned < len(view):
                self._write(buffer, bytes(view[aligned:]).ljust(4, b"\0"), offset + aligned)
        self.counters.bytes_uploaded += len(view)
        self.traffic.uploaded(len(view), started)

    def clear(self, buffers: Sequence[GpuBuffer]) -> None:
        """Fill buffers with zeros, in one submit."""
        if not buffers:
            return
        with self.lock:
            with self.api.record() as recorder:
                for buffer in buffers:
                    recorder.clear(buffer.handle, buffer.offset, buffer.nbytes)
                self.submit(recorder, buffers)
        for buffer in buffers:
            buffer.dirty = False

    def detach(self, part: GpuBuffer) -> None:
        """Move a slice out of its slab, into a WebGPU buffer of its own; its bind groups must be made again."""
        assert part.slab is not None
        with self.lock:
            own = self.buffer(part.name, part.nbytes, part.kind)
            with self.api.record() as recorder:
                recorder.copy(part.handle, part.offset, own.handle, 0, part.nbytes)
                self.submit(recorder, (part, own))
            part.slab.slices -= 1  # from here, no signal handler runs in between
            part.handle, part.offset, part.slab = own.handle, 0, None

    def read(self, buffer: GpuBuffer, nbytes: int) -> bytearray:
        """Read the first bytes of a buffer after all submitted work; `nbytes` is a multiple of 4."""
        started = perf_counter()
        staging = self.buffer("read back", nbytes, "staging")
        with self.lock:
            with self.api.record() as recorder:
                recorder.copy(buffer.handle, buffer.offset, staging.handle, 0, nbytes)
                self.submit(recorder, (buffer, staging))
        data = bytearray(staging.read(self, nbytes))
        self.counters.readbacks += 1
        staging.unmap()
        self.release(staging)
        self.traffic.read(nbytes, started)
        return data

    def submit(self, recorder: Recorder | None = None, buffers: Iterable[GpuBuffer] = ()) -> None:
        """Start recorded work, which uses `buffers`, after the pending writes; without work, start the writes.

        This is the only way to the GPU's queue. wgpu-native aborts the process in the four cases for which this
        raises: a destroyed buffer, a mapped buffer, a command buffer submitted twice, a lost device.
        """
        if self.info.type == "software":
            self.api.drain()  # such a driver waits for earlier work in the submit, where it ignores signals
        self.check_alive()
        if recorder is not None and recorder.ended:
            raise SubmitError("a command buffer was submitted twice; record it again")
        for buffer in buffers:
            state = (buffer.slab or buffer).state
            if state != "ready":
                raise SubmitError(f"buffer {buffer.name} is {state}, but submitted work uses it")
        commands = [] if recorder is None else recorder.end()
        self.api.submit(commands)
        self.counters.submits += max(1, len(commands))
        self.pending_bytes = 0

    def wait(self) -> None:
        """Wait until all writes and submitted work are done."""
        with self.lock:
            self.submit()
        self.api.drain()

    def destroy(self) -> None:
        """Destroy the device; later uses raise DeviceLost."""
        with self.lock, self._pipelines.lock:  # Dawn crashes if a device is destroyed while a thread compiles
            if self._lost is None:
                self.trim()
                self._lost = "the GPU device was destroyed; load the program again"
                self.api.destroy()

    def _new_buffer(self, name: str, nbytes: int, kind: Kind) -> GpuBuffer:
        try:
            buffer = GpuBuffer(self.api, name, nbytes, kind)
        except OutOfMemory:
            self.trim()
            self.wait()
            try:
                buffer = GpuBuffer(self.api, name, nbytes, kind)
            except OutOfMemory:
                free = self.available_bytes()
                available = "" if free is None else f"; {free} are available"
                raise OutOfMemory(f"buffer {name} needs {nbytes} bytes on {self.target.name}{available}") from None
        self.counters.buffers_created += 1
        return buffer

    def _write(self, buffer: GpuBuffer, data: memoryview | bytes, offset: int) -> None:
        self.api.write(buffer.handle, buffer.offset + offset, data)
        self.pending_bytes += len(data)
        if self.pending_bytes >= _WRITE_PENDING:
            self.wait()


_opening = threads.Lock()
_devices: dict[tuple[str, int, LimitSet, bool, bool, bool, bool], Device] = {}


def open_device(
    device: int | str = "auto",
    *,
    engine: Engine = "auto",
    limits: LimitSet = "adapter",
    f16: bool = True,
    subgroups: bool = True,
    matrices: bool = True,
    persistent: Persistent = "auto",
) -> Device:
    """Open the device of an adapter, once per process and options. `limits="browser"` requests WebGPU's defaults.

    `persistent` says whether the workgroups of a dispatch may wait for each other: "off" never; "auto" on GPUs, not on
    software adapters, if the probe passed; "on" on both, or raises LimitExceeded. `PTEGPU_PERSISTENT` replaces "auto".
    """
    info = find_adapter(device, engine)
    if persistent == "auto":
        persistent = os.environ.get("PTEGPU_PERSISTENT") or "auto"  # type: ignore[assignment]
    check_persistent(persistent)
    resident = persistent == "on" or (persistent == "auto" and info.type != "software")
    key = (info.engine, info.index, limits, f16, subgroups, matrices, resident)

    def new() -> Device:
        try:
            return Device(info, limits=limits, f16=f16, subgroups=subgroups, matrices=matrices)
        except DeviceError as error:
            raise NoAdapter(f"{info} cannot be opened: {error}") from error

    def opened() -> Device:
        with _opening:
            device = _devices.get(key)
            if device is None or device.lost:
                device = new()
                if resident:
                    residency.settle(device)
                    device = new() if device.lost else device  # by the probe
                _devices[key] = device
            return device

    if resident:
        from . import residency
    opened_device = threads.opening().do(opened)
    if persistent == "on":
        opened_device.check_persistent("on")
    return opened_device


@atexit.register
def _leave() -> None:
    """Leak the devices: releasing one waits for its work, and the end of a process should not wait."""
    for device in _devices.values():
        disown(device.api.handle)


def _within(limits: Mapping[str, int], adapter: Mapping[str, int]) -> dict[str, int]:
    """Return the weaker of `limits` and the adapter's limits."""
    return {name: (max if name.startswith("min-") else min)(n, adapter[name]) for name, n in limits.items()}


def _target(
    info: AdapterInfo, limits: NativeLimits, *, f16: bool, subgroups: bool, matrices: tuple[str, ...]
) -> Target:
    return Target(
        name=info.name,
        max_invocations=min(limits.maxComputeInvocationsPerWorkgroup, limits.maxComputeWorkgroupSizeX),
        max_shared_bytes=limits.maxComputeWorkgroupStorageSize,
        max_storage_buffers=limits.maxStorageBuffersPerShaderStage,
        max_binding_bytes=limits.maxStorageBufferBindingSize,
        max_buffer_bytes=limits.maxBufferSize,
        max_groups=limits.maxComputeWorkgroupsPerDimension,
        f16=f16,
        subgroups=subgroups,
        matrices=matrices,
        kept_bytes=(available_bytes(info) or 0) // KEPT if matrices and info.type == "discrete" else 0,
        device_class=class_of(info),
    )
