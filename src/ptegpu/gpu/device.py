"""An opened GPU: its target for kernel generators, its pipelines, its buffers, and the counters that tests read."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal

from ..errors import DeviceError, DeviceLost, NoAdapter, OutOfMemory
from ..plan.plan import Kernel
from ..plan.target import DeviceClass, Target
from ..progress import Progress, silent
from . import threads
from .adapters import AdapterInfo, Engine, find, library, native_adapter
from .buffers import BufferPool, GpuBuffer, Kind
from .classes import class_of
from .ownership import Handle, disown
from .pipelines import Pipeline, PipelineCache
from .probe import available_bytes, subgroup_size
from .submit import submit
from .uploads import Uploads
from .webgpu import MATRICES
from .webgpu import Limits as Given

Limits = Literal["adapter", "browser"]

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
KEPT = 4  # the part of a GPU's free memory that may keep weights in the form that kernels want
_ASIDE = 8  # threads that compile
_SPIN = 2e-3  # seconds that a GPU is waited for without a pause: a pause ends some 60 µs late
_WRITE_CHUNK = 32 << 20  # bytes of one write; the library stages each in host memory
_WRITE_PENDING = 64 << 20  # bytes staged before they are flushed to the GPU


@dataclass(slots=True)
class Counters:
    """What was done on a device since it was opened."""

    buffers_created: int = 0
    bind_groups_created: int = 0
    pipelines_created: int = 0
    submits: int = 0
    dispatches: int = 0
    readbacks: int = 0
    bytes_uploaded: int = 0

    def snapshot(self) -> Counters:
        return replace(self)

    def since(self, before: Counters) -> Counters:
        return Counters(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))


@dataclass(slots=True)
class Traffic:
    """What went to the GPU and came back since it was opened, and the seconds that the host spent on it."""

    uploads: int = 0
    upload_bytes: int = 0
    upload_seconds: float = 0.0
    readbacks: int = 0
    readback_bytes: int = 0
    readback_seconds: float = 0.0  # waiting for the GPU included

    def uploaded(self, nbytes: int, started: float, count: int = 1) -> None:
        self.uploads += count
        self.upload_bytes += nbytes
        self.upload_seconds += perf_counter() - started

    def read(self, nbytes: int, started: float) -> None:
        self.readbacks += 1
        self.readback_bytes += nbytes
        self.readback_seconds += perf_counter() - started

    def snapshot(self) -> Traffic:
        return replace(self)

    def since(self, before: Traffic) -> Traffic:
        return Traffic(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))


class Device:
    """A GPU device. Sessions share its pipelines and its pool; `lock` orders their recording and submitting."""

    def __init__(self, info: AdapterInfo, *, limits: Limits, f16: bool, subgroups: bool, matrices: bool) -> None:
        f16, subgroups = f16 and "shader-f16" in info.features, subgroups and "subgroups" in info.features
        shapes = tuple(m for m in info.matrices if f16 or "f16" not in m) if matrices and subgroups else ()
        self.timestamps = "timestamp-query" in info.features  # whether GPU time can be measured
        without = {"shader-f16": f16, "subgroups": subgroups, MATRICES: bool(shapes)}
        engine = library(info.engine)
        features = [name for name in engine.features if name in info.features and without.get(name, True)]
        required = _within(_BROWSER_LIMITS, info.limits) if limits == "browser" else {}
        self.api = engine(native_adapter(info), features, required)
        self.info, self.limits = info, limits
        if info.type != "software":  # whose work would have to share the processor with who waits
            self.api.spin = _SPIN
        self.lock = threads.Lock()
        self.counters = Counters()
        self.traffic = Traffic()
        self.pool, self.uploads = BufferPool(), Uploads(self)
        self._pipelines = PipelineCache(self.api)
        self.measured: DeviceClass | None = None  # its figures, once somebody asked
        self.pending_bytes = 0  # written, but not submitted yet
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

    def available_bytes(self) -> int | None:
        """Return the memory that new buffers may take; None when the adapter does not say."""
        return available_bytes(self.info)

    def buffer(self, name: str, nbytes: int, kind: Kind) -> GpuBuffer:
        """Return a buffer from the pool, which is dirty, or a new one."""
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
        """Give back the buffers that nothing uses."""
        with self.lock:
            self.pool.clear()
            self.uploads.clear()

    def pipeline(self, kernel: Kernel) -> Pipeline:
        return self.pipelines([kernel])[0]

    def pipelines(self, kernels: Sequence[Kernel]) -> list[Pipeline]:
        """Compile several kernels side by side."""
        found = self._pipelines.found(kernels)
        return self.compile_kernels(kernels).result() if found is None else found

    def compile_kernels(self, kernels: Sequence[Kernel], progress: Progress = silent) -> threads.Job[list[Pipeline]]:
        """Begin to compile in another thread. If nobody waits for it, that goes on, and whoever asks again has it."""

        def told(what: str, done: int, of: int) -> None:
            if not job.dropped:
                progress(what, done, of)

        def work() -> list[Pipeline]:
            found = self._pipelines.get_all(kernels, told)
            self.counters.pipelines_created = self._pipelines.compiled
            return found

        job = threads.Job(work)
        threads.pool("aside", _ASIDE).put(job)
        return job

    def bind_group(self, pipeline: Pipeline, entries: Sequence[tuple[GpuBuffer, int, int]]) -> Handle:
        """Make a bind group of (buffer, offset, nbytes), bound at 0, 1, …"""
        self.counters.bind_groups_created += 1
        return self.api.bind_group(pipeline.layout, [(b.handle, o, n) for b, o, n in entries])

    def write(self, buffer: GpuBuffer, data: memoryview | bytes, offset: int = 0) -> None:
        """Write bytes into a buffer, before whatever is submitted next. A tail of 1 to 3 bytes is padded with zeros."""
        started = perf_counter()
        view = memoryview(data).cast("B")
        whole = len(view) & ~3
        with self.lock:
            for start in range(0, whole, _WRITE_CHUNK):
                self._write(buffer, view[start : min(start + _WRITE_CHUNK, whole)], offset + start)
            if whole < len(view):
                self._write(buffer, bytes(view[whole:]).ljust(4, b"\0"), offset + whole)
        self.counters.bytes_uploaded += len(view)
        self.traffic.uploaded(len(view), started)

    def clear(self, buffers: Sequence[GpuBuffer]) -> None:
        """Fill buffers with zeros, in one submit."""
        if not buffers:
            return
        with self.lock:
            with self.api.record() as recorder:
                for buffer in buffers:
                    recorder.clear(buffer.handle, buffer.nbytes)
                submit(self, recorder, buffers)
        for buffer in buffers:
            buffer.dirty = False

    def read(self, buffer: GpuBuffer, nbytes: int) -> bytearray:
        """Read the first bytes of a buffer after everything submitted so far; `nbytes` is a multiple of 4."""
        started = perf_counter()
        staging = self.buffer("read back", nbytes, "staging")
        with self.lock:
            with self.api.record() as recorder:
                recorder.copy(buffer.handle, 0, staging.handle, 0, nbytes)
                submit(self, recorder, (buffer, staging))
        data = bytearray(staging.read(self, nbytes))
        self.counters.readbacks += 1
        staging.unmap()
        self.release(staging)
        self.traffic.read(nbytes, started)
        return data

    def wait(self) -> None:
        """Wait until everything written and submitted so far is done."""
        with self.lock:
            submit(self)
        self.api.drain()

    def destroy(self) -> None:
        """End the device; what still uses it raises DeviceLost from then on."""
        with self.lock, self._pipelines.lock:  # Dawn dies where a device is destroyed under a thread that compiles
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
                left = self.available_bytes()
                there = "" if left is None else f"; {left} are available"
                raise OutOfMemory(f"buffer {name} needs {nbytes} bytes on {self.target.name}{there}") from None
        self.counters.buffers_created += 1
        return buffer

    def _write(self, buffer: GpuBuffer, data: memoryview | bytes, offset: int) -> None:
        self.api.write(buffer.handle, offset, data)
        self.pending_bytes += len(data)
        if self.pending_bytes >= _WRITE_PENDING:
            self.wait()


_opening = threads.Lock()
_devices: dict[tuple[str, int, Limits, bool, bool, bool], Device] = {}


def open_device(
    device: int | str = "auto",
    *,
    engine: Engine = "auto",
    limits: Limits = "adapter",
    f16: bool = True,
    subgroups: bool = True,
    matrices: bool = True,
) -> Device:
    """Open the device of an adapter, once per process and options. `limits="browser"` asks for WebGPU's defaults."""
    info = find(device, engine)
    key = (info.engine, info.index, limits, f16, subgroups, matrices)

    def opened() -> Device:
        with _opening:
            found = _devices.get(key)
            if found is None or found.lost:
                try:
                    found = Device(info, limits=limits, f16=f16, subgroups=subgroups, matrices=matrices)
                except DeviceError as error:
                    raise NoAdapter(f"{info} cannot be opened: {error}") from error
                _devices[key] = found
            return found

    return threads.opening().do(opened)


@atexit.register
def _leave() -> None:
    """Leak the devices: one that is released waits for its work, which a process that ends should not."""
    for device in _devices.values():
        disown(device.api.handle)


def _within(wanted: Mapping[str, int], adapter: Mapping[str, int]) -> dict[str, int]:
    """Return the wanted limits, or the adapter's where those are worse."""
    return {name: (max if name.startswith("min-") else min)(n, adapter[name]) for name, n in wanted.items()}


def _target(info: AdapterInfo, limits: Given, *, f16: bool, subgroups: bool, matrices: tuple[str, ...]) -> Target:
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
