"""webgpu.h as both engines speak it: an opened device, and the some fifteen calls that everything else is made of.

`wgpu_native.py` and `dawn.py` say what differs: how a device is asked for, how it is polled, what its errors look like.
Only these and `recorder.py` call a C library. Each call carries its C signature, and none goes through the objects of
wgpu-py, which cost several times as much. Nothing here guards against what makes wgpu-native abort in a submit:
`submit.py` does. Signal handlers may raise anywhere (`held.py`); `until` is the one place that waits.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import not_
from typing import Any, ClassVar, NamedTuple

from _cffi_backend import callback as c_callback  # type: ignore[import-untyped]
from _cffi_backend import gcp

from ..errors import DeviceError, OutOfMemory
from ..limits import tick
from ..plan.dialect import Dialect
from ..plan.plan import Access
from . import held
from .held import Handle, Words, owned
from .recorder import Commanded, QuerySet, Recorder

Limits = Any  # a WGPULimits, whose fields have WebGPU's names: maxBufferSize, …
MATRICES = "chromium-experimental-subgroup-matrix"  # a feature
MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST = 1, 2, 4, 8  # WGPUBufferUsage
UNIFORM, STORAGE, QUERY_RESOLVE = 64, 128, 512


Place = tuple[int, int, str]  # where in a kernel its compiler found a fault: line, column, and what it says

_PAUSE = 1 / 16  # of the time waited so far, between two polls after that
_LONGEST_PAUSE = 5e-3  # seconds


class Source(NamedTuple):
    """What a pipeline is made of."""

    name: str
    wgsl: str
    layout: Handle
    translate: Callable[[Words], Exception]  # makes an error of the compiler's words


class WebGPU:
    """A device of an engine and its queue. Buffers, pipelines, … are C pointers, released with the last reference."""

    lib: ClassVar[Any]
    ffi: ClassVar[Any]
    dialect: ClassVar[Dialect]
    features: ClassVar[Mapping[str, int]]  # by WebGPU's names
    said: ClassVar[Sequence[str]] = ()  # while it looked for adapters
    once: ClassVar[bool] = False  # whether an adapter object makes one device only
    spin = 200e-6  # seconds that `until` polls without a pause
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
        """The adapters of these backends (Vulkan, Metal, DX12) as the engine's Python package has them."""
        raise NotImplementedError

    @classmethod
    def matrices(cls, adapter: Any) -> tuple[str, ...]:
        """What subgroups of an adapter multiply, as `Target.matrices` has it."""
        return ()

    @classmethod
    def as_error(cls, words: Words) -> DeviceError:
        """The ptegpu error for words of the engine, in one line."""
        summary = cls.summary(words.text)
        return OutOfMemory(f"the GPU is out of memory ({summary})") if words.full else DeviceError(summary)

    @staticmethod
    def summary(text: str) -> str:
        """What an error is, in one line."""
        raise NotImplementedError

    @staticmethod
    def fault(text: str) -> Place | None:
        """Where a kernel is wrong, if the compiler says so."""
        raise NotImplementedError

    def _limits(self) -> tuple[Limits, Any]:
        """Room for limits, and what must live as long."""
        return self.ffi.new("WGPULimits *"), None

    def _describe(self, descriptor: Any) -> Any:
        """Adds to the description of a device; returns what must live as long."""
        raise NotImplementedError

    def pipelines(self, sources: Sequence[Source], told: Callable[[int], object]) -> list[Handle]:
        """Several, compiled side by side; `told` how many are done. A DeviceError if any is wrong, which does not say
        whose."""
        raise NotImplementedError

    def poll(self) -> object:
        """Lets the engine answer what was asked."""
        raise NotImplementedError

    def drain(self) -> None:
        """Waits until the queue is empty."""
        raise NotImplementedError

    def timestamp_period(self) -> float:
        """Nanoseconds of one tick of the timestamps."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Raise DeviceLost if the device is gone, or what a signal handler raised in the callback that said so."""
        held.raise_delayed()
        if self.lost:
            raise held.lost(self.lost[0])

    @classmethod
    def object_counts(cls) -> dict[str, int]:
        """How many objects of each kind the library holds for us: what a leak test compares."""
        raise NotImplementedError

    # What is the same in both.

    def checked(self, translate: Callable[[Words], Exception] | None = None) -> held.checked:
        """A block in which errors of the engine become ours."""
        return held.checked(translate or self.as_error, self.lost)

    def destroy(self) -> None:
        # void wgpuDeviceDestroy(WGPUDevice)
        self.lib.wgpuDeviceDestroy(self.handle)
        held.raise_delayed()  # Dawn calls back that it is lost

    def buffer(self, name: str, nbytes: int, usage: int) -> Handle:
        """A buffer of zeros; `usage` is WebGPU's. One to write into is mapped already."""
        descriptor = self.ffi.new("WGPUBufferDescriptor *")
        _label = self._say(descriptor.label, name)
        descriptor.size, descriptor.usage, descriptor.mappedAtCreation = nbytes, usage, bool(usage & MAP_WRITE)
        with self.checked():
            # WGPUBuffer wgpuDeviceCreateBuffer(WGPUDevice, WGPUBufferDescriptor const *)
            return owned(self.lib.wgpuBufferRelease, self.lib.wgpuDeviceCreateBuffer, self.handle, descriptor)

    def destroy_buffer(self, buffer: Handle) -> None:
        """Gives its memory back once submitted work is done with it; withdraws a map request."""
        # void wgpuBufferDestroy(WGPUBuffer)
        self.lib.wgpuBufferDestroy(buffer)

    def layouts(self, access: Sequence[Access]) -> tuple[Handle, Handle]:
        """The layout of a bind group of buffers at 0, 1, …, and that of a pipeline which has only this group."""
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
        with self.checked():
            # WGPUBindGroupLayout wgpuDeviceCreateBindGroupLayout(WGPUDevice, WGPUBindGroupLayoutDescriptor const *)
            make, release = lib.wgpuDeviceCreateBindGroupLayout, lib.wgpuBindGroupLayoutRelease
            group = owned(release, make, self.handle, group_descriptor)
        groups = ffi.new("WGPUBindGroupLayout[1]", [group])
        descriptor = ffi.new("WGPUPipelineLayoutDescriptor *")
        descriptor.bindGroupLayoutCount, descriptor.bindGroupLayouts = 1, groups
        with self.checked():
            # WGPUPipelineLayout wgpuDeviceCreatePipelineLayout(WGPUDevice, WGPUPipelineLayoutDescriptor const *)
            make, release = lib.wgpuDeviceCreatePipelineLayout, lib.wgpuPipelineLayoutRelease
            return group, owned(release, make, self.handle, descriptor)

    def pipeline(self, source: Source) -> Handle:
        """A compute pipeline."""
        descriptor, _kept = self._described(source)
        with self.checked(source.translate):
            # WGPUComputePipeline wgpuDeviceCreateComputePipeline(WGPUDevice, WGPUComputePipelineDescriptor const *)
            make, release = self.lib.wgpuDeviceCreateComputePipeline, self.lib.wgpuComputePipelineRelease
            return owned(release, make, self.handle, descriptor)

    def module(self, source: Source) -> Handle:
        """A compiled shader: most of what can be wrong with one is found here."""
        lib, ffi = self.lib, self.ffi
        text = ffi.new("WGPUShaderSourceWGSL *")
        text.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        _texts = self._say(text.code, source.wgsl), self._say(descriptor.label, source.name)
        descriptor.nextInChain = ffi.addressof(text, "chain")
        with self.checked(source.translate):
            # WGPUShaderModule wgpuDeviceCreateShaderModule(WGPUDevice, WGPUShaderModuleDescriptor const *)
            make, release = lib.wgpuDeviceCreateShaderModule, lib.wgpuShaderModuleRelease
            return owned(release, make, self.handle, descriptor)

    def _described(self, source: Source) -> tuple[Any, Any]:
        """The description of a pipeline, and what must live as long."""
        module = self.module(source)
        descriptor = self.ffi.new("WGPUComputePipelineDescriptor *")
        texts = self._say(descriptor.label, source.name), self._say(descriptor.compute.entryPoint, "main")
        descriptor.layout, descriptor.compute.module = source.layout, module
        return descriptor, (module, texts)

    def bind_group(self, layout: Handle, entries: Sequence[tuple[Handle, int, int]]) -> Handle:
        """Buffers bound at 0, 1, … as (buffer, offset, nbytes)."""
        c_entries = self.ffi.new("WGPUBindGroupEntry[]", len(entries))
        for number, (buffer, offset, nbytes) in enumerate(entries):
            entry = c_entries[number]
            entry.binding, entry.buffer, entry.offset, entry.size = number, buffer, offset, nbytes
        descriptor = self.ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout, descriptor.entryCount, descriptor.entries = layout, len(entries), c_entries
        with self.checked():
            # WGPUBindGroup wgpuDeviceCreateBindGroup(WGPUDevice, WGPUBindGroupDescriptor const *)
            make, release = self.lib.wgpuDeviceCreateBindGroup, self.lib.wgpuBindGroupRelease
            return owned(release, make, self.handle, descriptor)

    def query_set(self, count: int) -> QuerySet:
        """Room for timestamps."""
        descriptor = self.ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = self.lib.WGPUQueryType_Timestamp, count
        with self.checked():
            # WGPUQuerySet wgpuDeviceCreateQuerySet(WGPUDevice, WGPUQuerySetDescriptor const *)
            make, release = self.lib.wgpuDeviceCreateQuerySet, self.lib.wgpuQuerySetRelease
            return QuerySet(owned(release, make, self.handle, descriptor), count)

    def write(self, buffer: Handle, offset: int, data: memoryview | bytes) -> None:
        """Bytes into a buffer before the next submit; a multiple of 4 of them, at a multiple of 4."""
        c_data = self.ffi.from_buffer(data)
        with self.checked():
            # void wgpuQueueWriteBuffer(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t size)
            self.lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, c_data, len(c_data))

    def record(self) -> Recorder:
        """A command encoder; a context manager that releases it whatever happens."""
        return Recorder(self.lib, self.ffi, self.handle)

    def submit(self, recorded: Sequence[Commanded]) -> None:
        """Hands over what was recorded, and the pending writes before it. What was recorded wrongly is raised.

        wgpu-native never frees a command buffer that is not submitted, and aborts where a faulty one is. So one step of
        Python code finishes each, looks for errors, and submits it.
        """
        lib, null = self.lib, self.ffi.NULL
        errors = map(not_, repeat(held.said.errors))
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

    def until(self, done: Callable[[object], object]) -> None:
        """Polls until `done` holds, which is told what a poll returns. Signal handlers may raise at any time.

        A poll that blocks would be deaf to signals, and would keep other threads from submitting.
        """
        poll = self.poll
        with self.checked():
            polled = poll()
            began = time.perf_counter()
            while not done(polled):
                waited = time.perf_counter() - began
                if waited > self.spin:
                    tick()
                    time.sleep(min(waited * _PAUSE, _LONGEST_PAUSE))
                polled = poll()

    def map_for_reading(self, buffer: Handle, nbytes: int, request: Request) -> None:
        """Maps the first bytes of a MAP_READ buffer once the work submitted so far that uses it is done.

        If that fails, or a signal handler raises, `withdraw` it, and use another request the next time.
        """
        self.map_async(buffer, self.lib.WGPUMapMode_Read, nbytes, request)
        self._await(request)
        if not request.succeeded:
            self.check_alive()
            raise DeviceError(f"reading back failed: status {request.answer[0]}")

    def withdraw(self, buffer: Handle) -> None:
        """Unmaps a buffer, whether it is mapped or only asked for, which is answered then."""
        self.lib.wgpuBufferUnmap(buffer)

    def map_async(self, buffer: Handle, mode: int, nbytes: int, request: Request) -> None:
        """Asks for the first bytes of a buffer."""
        request.expect()
        with self.checked():
            # WGPUFuture wgpuBufferMapAsync(WGPUBuffer, WGPUMapMode, size_t offset, size_t size,
            #     WGPUBufferMapCallbackInfo)
            self.lib.wgpuBufferMapAsync(buffer, mode, 0, nbytes, request.info[0])

    def mapped(self, buffer: Handle, nbytes: int) -> memoryview:
        """The first bytes of a mapped buffer: a view that `unmap` ends, and with Dawn the loss of the device. So it is
        used before the next call. wgpu-native aborts where it is not mapped."""
        # void const * wgpuBufferGetConstMappedRange(WGPUBuffer, size_t offset, size_t size)
        return self._view(self.lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes), nbytes)

    def writable(self, buffer: Handle, nbytes: int) -> memoryview:
        """The same of a buffer that is mapped to write into it."""
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

    def _await(self, request: Request) -> None:
        """Waits until it is answered."""
        self.until(lambda _: request.answer)

    def _request(self, adapter: Handle, descriptor: Any) -> Handle:
        lib, ffi = self.lib, self.ffi
        opened: list[Handle] = []
        refused: list[str] = []

        @held.callback(ffi, "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)")
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
        """Points a WGPUStringView at a text, which must live as long: it is returned for that."""
        data = self.ffi.from_buffer(text.encode())
        view.data, view.length = data, len(data)
        return data


class Request:
    """What a library calls back when it has done what it was asked for; it may be used again then."""

    __slots__ = ("_called", "_success", "answer", "info")

    def __init__(self, api: WebGPU, kind: str) -> None:
        self.answer: list[int] = []
        self._success = api.lib.WGPUMapAsyncStatus_Success
        # list.append runs no Python code. It takes the first argument, the status, and leaves the others alone, as a C
        # function may where its caller cleans up.
        self._called = c_callback(api.ffi.typeof("void (*)(uint32_t)"), self.answer.append, None, None)
        self.info = api.ffi.new(f"{kind}Info *")
        self.info.mode, self.info.callback = (
            api.lib.WGPUCallbackMode_AllowProcessEvents,
            api.ffi.cast(kind, self._called),
        )

    def expect(self) -> None:
        """It will be answered, and lives at least until then."""
        self.answer.clear()
        held.expect(self, self.answer)

    @property
    def succeeded(self) -> bool:
        """Whether a buffer is mapped."""
        return self.answer[0] == self._success  # type: ignore[no-any-return]


def text_of(ffi: Any, view: Any) -> str:
    """A WGPUStringView's text."""
    if view.data == ffi.NULL:
        return ""
    return ffi.string(view.data, min(view.length, 1 << 20)).decode(errors="replace")  # type: ignore[no-any-return]


def error_callback(lib: Any, ffi: Any) -> Any:
    """Where the devices of an engine report errors."""

    @held.callback(ffi, "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)")
    def on_error(_device: Any, kind: int, message: Any, _1: Any, _2: Any) -> None:
        held.said.errors.append(Words(kind == lib.WGPUErrorType_OutOfMemory, text_of(ffi, message)))

    return on_error
