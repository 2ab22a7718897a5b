"""wgpu-native's raw functions: recording, submitting and mapping without wgpu-py's cost per call.

The only module that calls the C library. Each call carries its C signature. Errors the library reports during a
`checked` block are raised as ours at its end; nothing here guards against the cases in which a submit aborts the
process: `submit.py` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import wgpu
from wgpu.backends.wgpu_native import ffi, lib
from wgpu.backends.wgpu_native._api import error_handler
from wgpu.backends.wgpu_native._helpers import generate_report

from ..errors import DeviceError, DeviceLost, OutOfMemory

Handle = Any  # a C pointer to a wgpu-native object
Step = tuple[Handle | None, Handle, int, int]  # pipeline (None: the one before), bind group, grid x, grid y
Stamps = tuple["QuerySet", int, int]  # the queries for the times at which a pass begins and ends

_LOST = ("device is lost", "device lost")
_FULL = ("not enough memory", "out of memory")


def handle_of(wrapped: Any) -> Handle:
    """The C pointer inside an object of wgpu-py."""
    return wrapped._internal


def as_error(message: str) -> DeviceError:
    """The ptegpu error for words of wgpu-native: one line, without its "Caused by" scaffolding."""
    lines = [line.strip() for line in message.split("Caused by:", 1)[-1].splitlines()]
    words = ": ".join(line for line in lines if line)
    lowered = message.lower()
    if any(lost in lowered for lost in _LOST):
        return DeviceLost(f"the GPU device is lost ({words}); load the program again")
    if any(full in lowered for full in _FULL):
        return OutOfMemory(f"the GPU is out of memory ({words})")
    return DeviceError(words)


class checked:
    """A block in which errors of wgpu-native, and those wgpu-py raises, become ours."""

    __slots__ = ()

    def __enter__(self) -> None:
        error_handler.capture("ptegpu")

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        reported = error_handler.release("ptegpu")
        if isinstance(error, wgpu.GPUError):
            raise as_error(str(error)) from None
        if error is None and reported is not None:
            raise as_error(reported[1])


class Recorder:
    """One command encoder; a context manager that releases it whatever happens."""

    __slots__ = ("_encoder",)

    def __init__(self, device: Handle) -> None:
        # WGPUCommandEncoder wgpuDeviceCreateCommandEncoder(WGPUDevice, WGPUCommandEncoderDescriptor const *)
        self._encoder = lib.wgpuDeviceCreateCommandEncoder(device, ffi.NULL)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        # void wgpuCommandEncoderRelease(WGPUCommandEncoder)
        lib.wgpuCommandEncoderRelease(self._encoder)

    def copy(self, source: Handle, source_offset: int, target: Handle, target_offset: int, nbytes: int) -> None:
        # void wgpuCommandEncoderCopyBufferToBuffer(WGPUCommandEncoder, WGPUBuffer source, uint64_t sourceOffset,
        #     WGPUBuffer destination, uint64_t destinationOffset, uint64_t size)
        lib.wgpuCommandEncoderCopyBufferToBuffer(self._encoder, source, source_offset, target, target_offset, nbytes)

    def clear(self, buffer: Handle, nbytes: int) -> None:
        # void wgpuCommandEncoderClearBuffer(WGPUCommandEncoder, WGPUBuffer, uint64_t offset, uint64_t size)
        lib.wgpuCommandEncoderClearBuffer(self._encoder, buffer, 0, nbytes)

    def compute(self, steps: Iterable[Step], stamps: Stamps | None = None) -> None:
        """One compute pass; with `stamps`, the GPU notes when it begins and ends."""
        null = descriptor = ffi.NULL
        if stamps is not None:
            queries, begin, end = stamps
            writes = ffi.new("WGPUPassTimestampWrites *")
            writes.querySet, writes.beginningOfPassWriteIndex, writes.endOfPassWriteIndex = queries.handle, begin, end
            descriptor = ffi.new("WGPUComputePassDescriptor *")
            descriptor.timestampWrites = writes
        # void wgpuComputePassEncoderSetPipeline(WGPUComputePassEncoder, WGPUComputePipeline)
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        # void wgpuComputePassEncoderSetBindGroup(WGPUComputePassEncoder, uint32_t groupIndex, WGPUBindGroup,
        #     size_t dynamicOffsetCount, uint32_t const * dynamicOffsets)
        set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        # void wgpuComputePassEncoderDispatchWorkgroups(WGPUComputePassEncoder, uint32_t x, uint32_t y, uint32_t z)
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        # WGPUComputePassEncoder wgpuCommandEncoderBeginComputePass(WGPUCommandEncoder,
        #     WGPUComputePassDescriptor const *)
        compute_pass = lib.wgpuCommandEncoderBeginComputePass(self._encoder, descriptor)
        for pipeline, group, x, y in steps:
            if pipeline is not None:
                set_pipeline(compute_pass, pipeline)
            set_bind_group(compute_pass, 0, group, 0, null)
            dispatch(compute_pass, x, y, 1)
        # void wgpuComputePassEncoderEnd(WGPUComputePassEncoder)
        lib.wgpuComputePassEncoderEnd(compute_pass)
        # void wgpuComputePassEncoderRelease(WGPUComputePassEncoder)
        lib.wgpuComputePassEncoderRelease(compute_pass)

    def resolve(self, queries: QuerySet, target: Handle, offset: int) -> None:
        """The times of all queries into a buffer, 8 bytes each; `offset` is a multiple of 256."""
        # void wgpuCommandEncoderResolveQuerySet(WGPUCommandEncoder, WGPUQuerySet, uint32_t firstQuery,
        #     uint32_t queryCount, WGPUBuffer destination, uint64_t destinationOffset)
        lib.wgpuCommandEncoderResolveQuerySet(self._encoder, queries.handle, 0, queries.count, target, offset)

    def finish(self) -> Handle:
        """The command buffer; whatever was recorded wrongly is raised here."""
        commands = ffi.NULL
        try:
            with checked():
                # WGPUCommandBuffer wgpuCommandEncoderFinish(WGPUCommandEncoder, WGPUCommandBufferDescriptor const *)
                commands = lib.wgpuCommandEncoderFinish(self._encoder, ffi.NULL)
        except DeviceError:
            if commands != ffi.NULL:
                release_commands(commands)
            raise
        return commands


def release_commands(commands: Handle) -> None:
    # void wgpuCommandBufferRelease(WGPUCommandBuffer)
    lib.wgpuCommandBufferRelease(commands)


class QuerySet:
    """Room for timestamps; released with its last reference."""

    __slots__ = ("count", "handle")

    def __init__(self, device: Handle, count: int) -> None:
        descriptor = ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = lib.WGPUQueryType_Timestamp, count
        self.count, self.handle = count, ffi.NULL
        with checked():
            # WGPUQuerySet wgpuDeviceCreateQuerySet(WGPUDevice, WGPUQuerySetDescriptor const *)
            self.handle = lib.wgpuDeviceCreateQuerySet(device, descriptor)

    def __del__(self) -> None:
        if lib is not None and self.handle != ffi.NULL:
            # void wgpuQuerySetRelease(WGPUQuerySet)
            lib.wgpuQuerySetRelease(self.handle)


def timestamp_period(queue: Handle) -> float:
    """Nanoseconds of one tick of the timestamps."""
    # float wgpuQueueGetTimestampPeriod(WGPUQueue)
    return float(lib.wgpuQueueGetTimestampPeriod(queue))


class BindGroup:
    """Buffers bound at 0, 1, … as (buffer, offset, nbytes); released with its last reference."""

    __slots__ = ("handle",)

    def __init__(self, device: Handle, layout: Handle, entries: Sequence[tuple[Handle, int, int]]) -> None:
        c_entries = ffi.new("WGPUBindGroupEntry[]", len(entries))
        for number, (buffer, offset, nbytes) in enumerate(entries):
            entry = c_entries[number]
            entry.binding, entry.buffer, entry.offset, entry.size = number, buffer, offset, nbytes
        descriptor = ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout, descriptor.entryCount, descriptor.entries = layout, len(entries), c_entries
        self.handle = ffi.NULL
        with checked():
            # WGPUBindGroup wgpuDeviceCreateBindGroup(WGPUDevice, WGPUBindGroupDescriptor const *)
            self.handle = lib.wgpuDeviceCreateBindGroup(device, descriptor)

    def __del__(self) -> None:
        if lib is not None and self.handle != ffi.NULL:
            # void wgpuBindGroupRelease(WGPUBindGroup)
            lib.wgpuBindGroupRelease(self.handle)


def write(queue: Handle, buffer: Handle, offset: int, data: memoryview | bytes) -> None:
    """Bytes into a buffer before the next submit; a multiple of 4 of them, at a multiple of 4."""
    c_data = ffi.from_buffer(data)
    with checked():
        # void wgpuQueueWriteBuffer(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t size)
        lib.wgpuQueueWriteBuffer(queue, buffer, offset, c_data, len(c_data))


def probe_alive(queue: Handle, buffer: Handle) -> None:
    """Raises DeviceLost when the device is: a write of no bytes is the cheapest call that looks."""
    with checked():
        # void wgpuQueueWriteBuffer(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t size)
        lib.wgpuQueueWriteBuffer(queue, buffer, 0, ffi.NULL, 0)


def submit(queue: Handle, commands: Handle | None) -> int:
    """Hands over one command buffer (or, with None, only the pending writes) and returns the submission's index."""
    c_commands = ffi.NULL if commands is None else ffi.new("WGPUCommandBuffer[1]", [commands])
    with checked():
        # WGPUSubmissionIndex wgpuQueueSubmitForIndex(WGPUQueue, size_t commandCount, WGPUCommandBuffer const *)
        return int(lib.wgpuQueueSubmitForIndex(queue, 0 if commands is None else 1, c_commands))


def wait(device: Handle, submission: int) -> None:
    """Blocks the calling thread until a submission is done; callbacks of finished maps run meanwhile."""
    with checked():
        # WGPUBool wgpuDevicePoll(WGPUDevice, WGPUBool wait, WGPUSubmissionIndex const * submissionIndex)
        lib.wgpuDevicePoll(device, 1, ffi.new("WGPUSubmissionIndex *", submission))


_tokens = itertools.count(1)
_map_results: dict[int, tuple[int, str]] = {}  # token of a map request → status and message


def _remember_map(status: int, message: Any, token: Any, _: Any) -> None:
    text = "" if message.data == ffi.NULL else ffi.string(message.data, message.length).decode(errors="replace")
    _map_results[int(ffi.cast("uintptr_t", token))] = (status, text)


_on_mapped = ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", _remember_map)


def map_for_reading(device: Handle, buffer: Handle, nbytes: int, submission: int) -> memoryview:
    """The bytes of a MAP_READ buffer once `submission` is done: a view that `unmap` ends."""
    token = next(_tokens)
    info = ffi.new("WGPUBufferMapCallbackInfo *")
    info.mode = lib.WGPUCallbackMode_AllowProcessEvents
    info.callback = _on_mapped
    info.userdata1 = ffi.cast("void *", token)
    with checked():
        # WGPUFuture wgpuBufferMapAsync(WGPUBuffer, WGPUMapMode, size_t offset, size_t size,
        #     WGPUBufferMapCallbackInfo)
        lib.wgpuBufferMapAsync(buffer, lib.WGPUMapMode_Read, 0, nbytes, info[0])
    # Another thread's poll may have taken our callback and not run it yet when our own poll returns.
    while token not in _map_results:
        wait(device, submission)
    status, message = _map_results.pop(token)
    if status != lib.WGPUMapAsyncStatus_Success:
        raise as_error(f"reading back failed: {message or f'status {status}'}")
    # void const * wgpuBufferGetConstMappedRange(WGPUBuffer, size_t offset, size_t size)
    address = lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes)
    return memoryview(ffi.buffer(address, nbytes))


def unmap(buffer: Handle) -> None:
    with checked():
        # void wgpuBufferUnmap(WGPUBuffer)
        lib.wgpuBufferUnmap(buffer)


def object_counts() -> dict[str, int]:
    """How many objects of each kind the library holds for us: what a leak test compares."""
    return {kind: report["kept"] for kind, report in generate_report()["hub"].items()}
