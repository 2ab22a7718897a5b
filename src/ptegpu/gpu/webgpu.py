"""webgpu.h as both engines speak it: an opened device, and the some fifteen calls that everything else is made of.

`wgpu_native.py` and `dawn.py` say what differs: how a device is asked for, how it is polled, what its errors look like.
Only these and `recorder.py` call a C library. Each call carries its C signature, and none goes through the objects of
wgpu-py, which cost several times as much. Nothing here guards against what makes wgpu-native abort in a submit:
`submit.py` does. Signal handlers may raise anywhere (`faults.py`); `until` is the one place that waits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import not_
from typing import Any, ClassVar, NamedTuple

from _cffi_backend import gcp  # type: ignore[import-untyped]

from ..errors import DeviceError, OutOfMemory
from ..plan.directives import Dialect
from ..plan.plan import Access
from . import faults
from .faults import Report, text_of
from .ownership import Handle, owned
from .recorder import Commanded, QuerySet, Recorder
from .waiting import Request

Limits = Any  # a WGPULimits, whose fields have WebGPU's names: maxBufferSize, …
MATRICES = "chromium-experimental-subgroup-matrix"  # a feature
MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST = 1, 2, 4, 8  # WGPUBufferUsage
UNIFORM, STORAGE, QUERY_RESOLVE = 64, 128, 512


Place = tuple[int, int, str]  # where in a kernel its compiler found a fault: line, column, and what it says


class Source(NamedTuple):
    """What a pipeline is made of."""

    name: str
    wgsl: str
    layout: Handle
    translate: Callable[[Report], Exception]  # makes an error of what the compiler reports


class WebGPU:
    """A device of an engine and its queue. Buffers, pipelines, … are C pointers, released with the last reference."""

    lib: ClassVar[Any]
    ffi: ClassVar[Any]
    dialect: ClassVar[Dialect]
    features: ClassVar[Mapping[str, int]]  # by WebGPU's names
    said: ClassVar[Sequence[str]] = ()  # while it looked for adapters
    once: ClassVar[bool] = False  # whether an adapter object makes one device only
    spin = 200e-6  # seconds that `waiting.until` polls without a pause
    on_error: ClassVar[Any]  # where a device reports errors; it does so inside the call that fails, on its thread

    def __init__(self, adapter: Any, features: Iterable[str], limits: Mapping[str, int]) -> None:
        """`limits` has those to ask for as wgpu-py names them, max-buffer-size; what it leaves out is the adapter's."""
        lib, ffi = self.lib, self.ffi
        self.lost: list[str] = []  # why the device is gone, where the engine tells by itself
        asked, _kept = self._limits()
        # WGPUStatus wgpuAdapterGetLimits(WGPUAdapter, WGPULimits *)
        lib.wgpuAdapterGetLimits(adapter._internal, asked)
        for name, value in limits.items():
            setattr(asked, re.sub("-(.)", lambda found: found[1].upper(), name), value)
        descriptor = ffi.new("WGPUDeviceDescriptor *")
        _label = self._say(descriptor.label, "ptegpu")
        c_features = ffi.new("WGPUFeatureName[]", [self.features[name] for name in features])
        descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(c_features), c_features
        descriptor.requiredLimits = asked
        descriptor.uncapturedErrorCallbackInfo.callback = self.on_error
        descriptor.deviceLostCallbackInfo.mode = lib.WGPUCallbackMode_AllowSpontaneous
        _more = self._describe(descriptor)
        self.handle = self._request(adapter._internal, descriptor)
        # WGPUStatus wgpuDeviceGetLimits(WGPUDevice, WGPULimits *)
        lib.wgpuDeviceGetLimits(self.handle, asked)
        asked.nextInChain = ffi.NULL
        self.limits: Limits = asked
        # WGPUQueue wgpuDeviceGetQueue(WGPUDevice)
        self.queue = owned(lib.wgpuQueueRelease, lib.wgpuDeviceGetQueue, self.handle)

    # What an engine says in its own way.

    @classmethod
    def adapters(cls, backends: Sequence[str]) -> list[Any]:
        """List the adapters of these backends (Vulkan, Metal, DX12) as the engine's Python package has them."""
        raise NotImplementedError

    @classmethod
    def matrices(cls, adapter: Any) -> tuple[str, ...]:
        """Return what subgroups of an adapter multiply, as `Target.matrices` has it."""
        return ()

    @classmethod
    def as_error(cls, report: Report) -> DeviceError:
        """Return the ptegpu error for a report of the engine, in one line."""
        summary = cls.summary(report.text)
        return OutOfMemory(f"the GPU is out of memory ({summary})") if report.out_of_memory else DeviceError(summary)

    @staticmethod
    def summary(text: str) -> str:
        """Summarize an error in one line."""
        raise NotImplementedError

    @staticmethod
    def fault(text: str) -> Place | None:
        """Return where a kernel is wrong, if the compiler says so."""
        raise NotImplementedError

    def _limits(self) -> tuple[Limits, Any]:
        """Return room for limits, and what must live as long."""
        return self.ffi.new("WGPULimits *"), None

    def _describe(self, descriptor: Any) -> Any:
        """Add to the description of a device; return what must live as long."""
        raise NotImplementedError

    def pipelines(self, sources: Sequence[Source], told: Callable[[int], object]) -> list[Handle]:
        """Compile several side by side; `told` hears how many are done. Raise DeviceError if any is wrong, without
        saying which."""
        raise NotImplementedError

    def poll(self) -> object:
        """Let the engine answer what was asked."""
        raise NotImplementedError

    def drain(self) -> None:
        """Wait until the queue is empty."""
        raise NotImplementedError

    def timestamp_period(self) -> float:
        """Return the nanoseconds of one tick of the timestamps."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Raise DeviceLost if the device is gone, or what a signal handler raised in the callback that said so."""
        faults.raise_delayed()
        if self.lost:
            raise faults.lost(self.lost[0])

    @classmethod
    def object_counts(cls) -> dict[str, int]:
        """Count the objects of each kind that the library holds for us: what a leak test compares."""
        raise NotImplementedError

    # What is the same in both.

    def checked(self, translate: Callable[[Report], Exception] | None = None) -> faults.checked:
        """Return a block in which errors of the engine become ours."""
        return faults.checked(translate or self.as_error, self.lost)

    def destroy(self) -> None:
        # void wgpuDeviceDestroy(WGPUDevice)
        self.lib.wgpuDeviceDestroy(self.handle)
        faults.raise_delayed()  # Dawn calls back that it is lost

    def buffer(self, name: str, nbytes: int, usage: int) -> Handle:
        """Make a buffer of zeros; `usage` is WebGPU's. One to write into is mapped already."""
        descriptor = self.ffi.new("WGPUBufferDescriptor *")
        _label = self._say(descriptor.label, name)
        descriptor.size, descriptor.usage, descriptor.mappedAtCreation = nbytes, usage, bool(usage & MAP_WRITE)
        # WGPUBuffer wgpuDeviceCreateBuffer(WGPUDevice, WGPUBufferDescriptor const *)
        return self._create("Buffer", descriptor)

    def _create(self, kind: str, descriptor: Any, translate: Callable[[Report], Exception] | None = None) -> Handle:
        """Make an object of the device; the caller's comment has the signature."""
        make, release = getattr(self.lib, f"wgpuDeviceCreate{kind}"), getattr(self.lib, f"wgpu{kind}Release")
        with self.checked(translate):
            return owned(release, make, self.handle, descriptor)

    def destroy_buffer(self, buffer: Handle) -> None:
        """Give its memory back once submitted work is done with it; withdraw a map request."""
        # void wgpuBufferDestroy(WGPUBuffer)
        self.lib.wgpuBufferDestroy(buffer)

    def layouts(self, access: Sequence[Access]) -> tuple[Handle, Handle]:
        """Make the layout of a bind group of buffers at 0, 1, …, and that of a pipeline which has only this group."""
        lib, ffi = self.lib, self.ffi
        kinds = {
            "read": lib.WGPUBufferBindingType_ReadOnlyStorage,
            "write": lib.WGPUBufferBindingType_Storage,
            "uniform": lib.WGPUBufferBindingType_Uniform,
        }
        entries = ffi.new("WGPUBindGroupLayoutEntry[]", len(access))
        for number, kind in enumerate(access):
            entries[number].binding, entries[number].visibility = number, lib.WGPUShaderStage_Compute
            entries[number].buffer.type = kinds[kind]
        group_descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *")
        group_descriptor.entryCount, group_descriptor.entries = len(access), entries
        # WGPUBindGroupLayout wgpuDeviceCreateBindGroupLayout(WGPUDevice, WGPUBindGroupLayoutDescriptor const *)
        group = self._create("BindGroupLayout", group_descriptor)
        groups = ffi.new("WGPUBindGroupLayout[1]", [group])
        descriptor = ffi.new("WGPUPipelineLayoutDescriptor *")
        descriptor.bindGroupLayoutCount, descriptor.bindGroupLayouts = 1, groups
        # WGPUPipelineLayout wgpuDeviceCreatePipelineLayout(WGPUDevice, WGPUPipelineLayoutDescriptor const *)
        return group, self._create("PipelineLayout", descriptor)

    def pipeline(self, source: Source) -> Handle:
        """Compile a compute pipeline."""
        descriptor, _kept = self._described(source)
        # WGPUComputePipeline wgpuDeviceCreateComputePipeline(WGPUDevice, WGPUComputePipelineDescriptor const *)
        return self._create("ComputePipeline", descriptor, source.translate)

    def module(self, source: Source) -> Handle:
        """Compile a shader: most of what can be wrong with one is found here."""
        lib, ffi = self.lib, self.ffi
        text = ffi.new("WGPUShaderSourceWGSL *")
        text.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        _texts = self._say(text.code, source.wgsl), self._say(descriptor.label, source.name)
        descriptor.nextInChain = ffi.addressof(text, "chain")
        # WGPUShaderModule wgpuDeviceCreateShaderModule(WGPUDevice, WGPUShaderModuleDescriptor const *)
        return self._create("ShaderModule", descriptor, source.translate)

    def _described(self, source: Source) -> tuple[Any, Any]:
        """Describe a pipeline; return also what must live as long."""
        module = self.module(source)
        descriptor = self.ffi.new("WGPUComputePipelineDescriptor *")
        texts = self._say(descriptor.label, source.name), self._say(descriptor.compute.entryPoint, "main")
        descriptor.layout, descriptor.compute.module = source.layout, module
        return descriptor, (module, texts)

    def bind_group(self, layout: Handle, entries: Sequence[tuple[Handle, int, int]]) -> Handle:
        """Bind buffers at 0, 1, … as (buffer, offset, nbytes)."""
        c_entries = self.ffi.new("WGPUBindGroupEntry[]", len(entries))
        for number, (buffer, offset, nbytes) in enumerate(entries):
            entry = c_entries[number]
            entry.binding, entry.buffer, entry.offset, entry.size = number, buffer, offset, nbytes
        descriptor = self.ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout, descriptor.entryCount, descriptor.entries = layout, len(entries), c_entries
        # WGPUBindGroup wgpuDeviceCreateBindGroup(WGPUDevice, WGPUBindGroupDescriptor const *)
        return self._create("BindGroup", descriptor)

    def query_set(self, count: int) -> QuerySet:
        """Make room for timestamps."""
        descriptor = self.ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = self.lib.WGPUQueryType_Timestamp, count
        # WGPUQuerySet wgpuDeviceCreateQuerySet(WGPUDevice, WGPUQuerySetDescriptor const *)
        return QuerySet(self._create("QuerySet", descriptor), count)

    def write(self, buffer: Handle, offset: int, data: memoryview | bytes) -> None:
        """Write bytes into a buffer before the next submit; a multiple of 4 of them, at a multiple of 4."""
        c_data = self.ffi.from_buffer(data)
        with self.checked():
            # void wgpuQueueWriteBuffer(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t size)
            self.lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, c_data, len(c_data))

    def record(self) -> Recorder:
        """Return a command encoder: a context manager that releases it whatever happens."""
        return Recorder(self.lib, self.ffi, self.handle)

    def submit(self, recorded: Sequence[Commanded]) -> None:
        """Hand over what was recorded, and the pending writes before it; raise what was recorded wrongly.

        wgpu-native never frees a command buffer that is not submitted, and aborts where a faulty one is. So one step of
        Python code finishes each, looks for errors, and submits it.
        """
        lib, null = self.lib, self.ffi.NULL
        errors = map(not_, repeat(faults.reported.errors))
        steps: list[Iterable[Any]] = []
        for encoder, calls in recorded:
            # WGPUCommandBuffer wgpuCommandEncoderFinish(WGPUCommandEncoder, WGPUCommandBufferDescriptor const *)
            finished = map(lib.wgpuCommandEncoderFinish, (encoder,), (null,))
            sound = compress(map(gcp, finished, (lib.wgpuCommandBufferRelease,)), errors)
            # void wgpuQueueSubmit(WGPUQueue, size_t commandCount, WGPUCommandBuffer const * commands)
            steps += [calls, map(lib.wgpuQueueSubmit, (self.queue,), (1,), zip(sound))]
        with self.checked():
            if not recorded:
                lib.wgpuQueueSubmit(self.queue, 0, null)
            deque(chain.from_iterable(steps), 0)

    def map_for_reading(self, buffer: Handle, nbytes: int, request: Request) -> None:
        """Map the first bytes of a MAP_READ buffer once the work submitted so far that uses it is done.

        If that fails, or a signal handler raises, `withdraw` it, and use another request the next time.
        """
        self.map_async(buffer, self.lib.WGPUMapMode_Read, nbytes, request)
        request.wait(self)
        if not request.succeeded:
            self.check_alive()
            raise DeviceError(f"reading back failed: status {request.answer[0]}")

    def withdraw(self, buffer: Handle) -> None:
        """Unmap a buffer, whether it is mapped or only asked for, which is answered then."""
        self.lib.wgpuBufferUnmap(buffer)

    def map_async(self, buffer: Handle, mode: int, nbytes: int, request: Request) -> None:
        """Ask for the first bytes of a buffer."""
        request.expect()
        with self.checked():
            # WGPUFuture wgpuBufferMapAsync(WGPUBuffer, WGPUMapMode, size_t offset, size_t size,
            #     WGPUBufferMapCallbackInfo)
            self.lib.wgpuBufferMapAsync(buffer, mode, 0, nbytes, request.info[0])

    def mapped(self, buffer: Handle, nbytes: int) -> memoryview:
        """Return the first bytes of a mapped buffer: a view that `unmap` ends, and with Dawn the loss of the device. So
        use it before the next call. wgpu-native aborts where it is not mapped."""
        # void const * wgpuBufferGetConstMappedRange(WGPUBuffer, size_t offset, size_t size)
        return self._view(self.lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes), nbytes)

    def writable(self, buffer: Handle, nbytes: int) -> memoryview:
        """Return the first bytes of a buffer that is mapped to write into it."""
        # void * wgpuBufferGetMappedRange(WGPUBuffer, size_t offset, size_t size)
        return self._view(self.lib.wgpuBufferGetMappedRange(buffer, 0, nbytes), nbytes)

    def _view(self, start: Any, nbytes: int) -> memoryview:
        if start == self.ffi.NULL:
            self.check_alive()
            raise DeviceError("a buffer is not mapped")
        return memoryview(self.ffi.buffer(start, nbytes)).cast("B")

    def unmap(self, buffer: Handle) -> None:
        with self.checked():
            # void wgpuBufferUnmap(WGPUBuffer)
            self.lib.wgpuBufferUnmap(buffer)

    def _request(self, adapter: Handle, descriptor: Any) -> Handle:
        lib, ffi = self.lib, self.ffi
        opened: list[Handle] = []
        refused: list[str] = []

        @faults.callback(ffi, "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)")
        def answered(status: int, made: Handle, message: Any, _1: Any, _2: Any) -> None:
            if status == lib.WGPURequestDeviceStatus_Success:
                opened[:] = [made]
            else:
                refused[:] = [text_of(ffi, message)]

        info = ffi.new("WGPURequestDeviceCallbackInfo *")
        info.mode, info.callback = lib.WGPUCallbackMode_AllowSpontaneous, answered
        try:
            with self.checked():
                # WGPUFuture wgpuAdapterRequestDevice(WGPUAdapter, WGPUDeviceDescriptor const *,
                #     WGPURequestDeviceCallbackInfo): it answers before it returns
                lib.wgpuAdapterRequestDevice(adapter, descriptor, info[0])
        finally:
            handle = owned(lib.wgpuDeviceRelease, opened.pop, 0) if opened else ffi.NULL
        if handle == ffi.NULL:
            raise DeviceError(self.summary(refused[0]) if refused else "it does not answer")
        return handle

    def _say(self, view: Any, text: str) -> Any:
        """Point a WGPUStringView at a text, and return that: it must live as long."""
        data = self.ffi.from_buffer(text.encode())
        view.data, view.length = data, len(data)
        return data
