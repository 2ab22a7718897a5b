"""The part of webgpu.h that both engines share: an opened device, and some fifteen calls that all other code uses.

`wgpu_native.py` and `dawn.py` contain the differences: how to request and poll a device, and the format of its errors.
Only these modules and `recorder.py` call a C library. Each call carries its C signature, and none uses the objects of
wgpu-py, which cost several times as much. `Device.submit` checks for what would make wgpu-native abort. `native.py`
explains how the calls survive signal handlers.
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
from . import native
from .native import Handle, NativeRequest, Report, owned, text_of
from .recorder import Commands, QuerySet, Recorder

NativeLimits = Any  # a WGPULimits, whose fields have WebGPU's names: maxBufferSize, …
MATRICES = "chromium-experimental-subgroup-matrix"  # a feature
MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST = 1, 2, 4, 8  # WGPUBufferUsage
UNIFORM, STORAGE, QUERY_RESOLVE = 64, 128, 512
Fault = tuple[int, int, str]  # a compiler's error: line, column, message


class ShaderSource(NamedTuple):
    """The WGSL and the layout of a pipeline."""

    name: str
    wgsl: str
    layout: Handle
    translate: Callable[[Report], Exception]  # turns the compiler's report into an error


class WebGPU:
    """A device of an engine and its queue. Buffers, pipelines, … are C pointers, released with the last reference."""

    lib: ClassVar[Any]
    ffi: ClassVar[Any]
    dialect: ClassVar[Dialect]
    features: ClassVar[Mapping[str, int]]  # by WebGPU's names
    messages: ClassVar[Sequence[str]] = ()  # printed while it looked for adapters
    once: ClassVar[bool] = False  # an adapter object makes one device only
    spin = 200e-6  # seconds that `waiting.until` polls without a pause
    on_error: ClassVar[Any]  # gets a device's errors, on the thread of the failing call and inside that call

    def __init__(self, adapter: Any, features: Iterable[str], limits: Mapping[str, int]) -> None:
        """Open a device. `limits` are those to request, by wgpu-py's names (max-buffer-size)."""
        lib, ffi = self.lib, self.ffi
        self.lost: list[str] = []  # why the device is gone, if the engine reports it
        requested, _chained = self._limits()
        # WGPUStatus wgpuAdapterGetLimits(WGPUAdapter, WGPULimits *)
        lib.wgpuAdapterGetLimits(adapter._internal, requested)
        for name, value in limits.items():
            setattr(requested, re.sub("-(.)", lambda match: match[1].upper(), name), value)
        descriptor = ffi.new("WGPUDeviceDescriptor *")
        _label = self._set_text(descriptor.label, "ptegpu")
        c_features = ffi.new("WGPUFeatureName[]", [self.features[name] for name in features])
        descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(c_features), c_features
        descriptor.requiredLimits = requested
        descriptor.uncapturedErrorCallbackInfo.callback = self.on_error
        descriptor.deviceLostCallbackInfo.mode = lib.WGPUCallbackMode_AllowSpontaneous
        _more = self._describe(descriptor)
        self.handle = self._request(adapter._internal, descriptor)
        # WGPUStatus wgpuDeviceGetLimits(WGPUDevice, WGPULimits *)
        lib.wgpuDeviceGetLimits(self.handle, requested)
        requested.nextInChain = ffi.NULL
        self.limits: NativeLimits = requested
        # WGPUQueue wgpuDeviceGetQueue(WGPUDevice)
        self.queue = owned(lib.wgpuQueueRelease, lib.wgpuDeviceGetQueue, self.handle)

    # Engines implement these.

    @classmethod
    def adapters(cls, backends: Sequence[str]) -> list[Any]:
        """List the adapter objects of the engine's Python package for these backends (Vulkan, Metal, DX12)."""
        raise NotImplementedError

    @classmethod
    def matrices(cls, adapter: Any) -> tuple[str, ...]:
        """Return the matrix products of an adapter's subgroups, in the form of `Target.matrices`."""
        return ()

    @classmethod
    def as_error(cls, report: Report) -> DeviceError:
        """Return our error for a report of the engine, in one line."""
        summary = cls.summary(report.text)
        return OutOfMemory(f"the GPU is out of memory ({summary})") if report.out_of_memory else DeviceError(summary)

    @staticmethod
    def summary(text: str) -> str:
        """Summarize an error in one line."""
        raise NotImplementedError

    @staticmethod
    def fault(text: str) -> Fault | None:
        """Return the place and message of a compiler's error, if the report has one."""
        raise NotImplementedError

    def _limits(self) -> tuple[NativeLimits, Any]:
        """Allocate a WGPULimits; return also an object that must live as long."""
        return self.ffi.new("WGPULimits *"), None

    def _describe(self, descriptor: Any) -> Any:
        """Complete the descriptor of a device; return an object that must live as long."""
        raise NotImplementedError

    def pipelines(self, sources: Sequence[ShaderSource], report: Callable[[int], object]) -> list[Handle]:
        """Compile several in parallel; `report` gets how many are done. Raise DeviceError if any is wrong, without
        naming it.
        """
        raise NotImplementedError

    def poll(self) -> object:
        """Let the engine answer requests."""
        raise NotImplementedError

    def drain(self) -> None:
        """Wait until the queue is empty."""
        raise NotImplementedError

    def timestamp_period(self) -> float:
        """Return the nanoseconds of one tick of the timestamps."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Raise DeviceLost if the device is gone, or the error that a signal handler raised in its callback."""
        native.raise_delayed()
        if self.lost:
            raise native.lost(self.lost[0])

    @classmethod
    def object_counts(cls) -> dict[str, int]:
        """Count the library's objects of each kind, for leak tests."""
        raise NotImplementedError

    # Both engines share these.

    def checked(self, translate: Callable[[Report], Exception] | None = None) -> native.checked:
        """Return a block that raises errors of the engine as ours."""
        return native.checked(translate or self.as_error, self.lost)

    def destroy(self) -> None:
        # void wgpuDeviceDestroy(WGPUDevice)
        self.lib.wgpuDeviceDestroy(self.handle)
        native.raise_delayed()  # Dawn calls the callback for lost devices

    def buffer(self, name: str, nbytes: int, usage: int) -> Handle:
        """Make a buffer of zeros; `usage` is WebGPU's. A MAP_WRITE buffer is mapped already."""
        descriptor = self.ffi.new("WGPUBufferDescriptor *")
        _label = self._set_text(descriptor.label, name)
        descriptor.size, descriptor.usage, descriptor.mappedAtCreation = nbytes, usage, bool(usage & MAP_WRITE)
        # WGPUBuffer wgpuDeviceCreateBuffer(WGPUDevice, WGPUBufferDescriptor const *)
        return self._create("Buffer", descriptor)

    def _create(self, kind: str, descriptor: Any, translate: Callable[[Report], Exception] | None = None) -> Handle:
        """Make an object of the device; the caller's comment has the C signature."""
        make, release = getattr(self.lib, f"wgpuDeviceCreate{kind}"), getattr(self.lib, f"wgpu{kind}Release")
        with self.checked(translate):
            return owned(release, make, self.handle, descriptor)

    def destroy_buffer(self, buffer: Handle) -> None:
        """Release its memory once submitted work is done with it; cancel a pending map request."""
        # void wgpuBufferDestroy(WGPUBuffer)
        self.lib.wgpuBufferDestroy(buffer)

    def layouts(self, access: Sequence[Access]) -> tuple[Handle, Handle]:
        """Make the layouts of a bind group of buffers at 0, 1, …, and of a pipeline that has only this group."""
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

    def pipeline(self, source: ShaderSource) -> Handle:
        """Compile a compute pipeline."""
        descriptor, _references = self._described(source)
        # WGPUComputePipeline wgpuDeviceCreateComputePipeline(WGPUDevice, WGPUComputePipelineDescriptor const *)
        return self._create("ComputePipeline", descriptor, source.translate)

    def module(self, source: ShaderSource) -> Handle:
        """Compile a shader, which finds most errors of a kernel."""
        lib, ffi = self.lib, self.ffi
        text = ffi.new("WGPUShaderSourceWGSL *")
        text.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        _texts = self._set_text(text.code, source.wgsl), self._set_text(descriptor.label, source.name)
        descriptor.nextInChain = ffi.addressof(text, "chain")
        # WGPUShaderModule wgpuDeviceCreateShaderModule(WGPUDevice, WGPUShaderModuleDescriptor const *)
        return self._create("ShaderModule", descriptor, source.translate)

    def _described(self, source: ShaderSource) -> tuple[Any, Any]:
        """Describe a pipeline; return also an object that must live as long."""
        module = self.module(source)
        descriptor = self.ffi.new("WGPUComputePipelineDescriptor *")
        texts = self._set_text(descriptor.label, source.name), self._set_text(descriptor.compute.entryPoint, "main")
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
        """Make a query set for timestamps."""
        descriptor = self.ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = self.lib.WGPUQueryType_Timestamp, count
        # WGPUQuerySet wgpuDeviceCreateQuerySet(WGPUDevice, WGPUQuerySetDescriptor const *)
        return QuerySet(self._create("QuerySet", descriptor), count)

    def write(self, buffer: Handle, offset: int, data: memoryview | bytes) -> None:
        """Write bytes into a buffer before the next submit; count and offset are multiples of 4."""
        c_data = self.ffi.from_buffer(data)
        with self.checked():
            # void wgpuQueueWriteBuffer(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t size)
            self.lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, c_data, len(c_data))

    def record(self) -> Recorder:
        """Return a command encoder, a context manager that always releases it."""
        return Recorder(self.lib, self.ffi, self.handle)

    def submit(self, recorded: Sequence[Commands]) -> None:
        """Submit recorded commands after the pending writes; raise errors of the recording.

        wgpu-native never frees a command buffer that is not submitted, and aborts if a faulty one is. So a single step
        of Python code finishes each, looks for errors, and submits it.
        """
        lib, null = self.lib, self.ffi.NULL
        no_errors = map(not_, repeat(native.reported.errors))
        steps: list[Iterable[Any]] = []
        for encoder, calls in recorded:
            # WGPUCommandBuffer wgpuCommandEncoderFinish(WGPUCommandEncoder, WGPUCommandBufferDescriptor const *)
            finished = map(lib.wgpuCommandEncoderFinish, (encoder,), (null,))
            sound = compress(map(gcp, finished, (lib.wgpuCommandBufferRelease,)), no_errors)
            # void wgpuQueueSubmit(WGPUQueue, size_t commandCount, WGPUCommandBuffer const * commands)
            steps += [calls, map(lib.wgpuQueueSubmit, (self.queue,), (1,), zip(sound))]
        with self.checked():
            if not recorded:
                lib.wgpuQueueSubmit(self.queue, 0, null)
            deque(chain.from_iterable(steps), 0)

    def map_for_reading(self, buffer: Handle, nbytes: int, request: NativeRequest) -> None:
        """Map the first bytes of a MAP_READ buffer once the submitted work that uses it is done.

        If that fails or a signal handler raises, call `withdraw`, and use another request the next time.
        """
        self.map_async(buffer, self.lib.WGPUMapMode_Read, nbytes, request)
        request.wait(self)
        if not request.succeeded:
            self.check_alive()
            raise DeviceError(f"reading back failed: status {request.answer[0]}")

    def withdraw(self, buffer: Handle) -> None:
        """Unmap a buffer or cancel its map request, which is answered then."""
        self.lib.wgpuBufferUnmap(buffer)

    def map_async(self, buffer: Handle, mode: int, nbytes: int, request: NativeRequest) -> None:
        """NativeRequest a mapping of the first bytes of a buffer."""
        request.expect()
        with self.checked():
            # WGPUFuture wgpuBufferMapAsync(WGPUBuffer, WGPUMapMode, size_t offset, size_t size,
            #     WGPUBufferMapCallbackInfo)
            self.lib.wgpuBufferMapAsync(buffer, mode, 0, nbytes, request.info[0])

    def mapped(self, buffer: Handle, nbytes: int) -> memoryview:
        """Return the first bytes of a mapped buffer, a view that `unmap` ends.

        With Dawn, the loss of the device ends it as well, so use it before the next call. wgpu-native aborts if the
        buffer is not mapped.
        """
        # void const * wgpuBufferGetConstMappedRange(WGPUBuffer, size_t offset, size_t size)
        return self._view(self.lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes), nbytes)

    def writable(self, buffer: Handle, nbytes: int) -> memoryview:
        """Return the first bytes of a buffer that is mapped for writing."""
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

        @native.callback(ffi, "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)")
        def answered(status: int, device: Handle, message: Any, _1: Any, _2: Any) -> None:
            if status == lib.WGPURequestDeviceStatus_Success:
                opened[:] = [device]
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

    def _set_text(self, view: Any, text: str) -> Any:
        """Point a WGPUStringView at a text; return the bytes, which must live as long."""
        data = self.ffi.from_buffer(text.encode())
        view.data, view.length = data, len(data)
        return data
