"""wgpu-native's raw functions: recording, submitting, mapping and waiting without wgpu-py's cost per call.

Only this module and `create.py` call the C library. Each call carries its C signature. Errors the library reports
during a `checked` block are raised as ours at its end; nothing here guards against the cases in which a submit aborts
the process: `submit.py` does.

A signal handler may raise between any two steps of Python code. So every object of the library is owned from the call
that makes it on (`owned`), no finalizer and no callback that a wait depends on runs Python code (cffi would print and
forget what is raised there), and `wait` is the one place that waits.
"""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, repeat
from operator import not_
from types import TracebackType
from typing import Any

from _cffi_backend import callback as c_callback  # type: ignore[import-untyped]
from _cffi_backend import gcp
from cffi import model  # type: ignore[import-untyped]
from wgpu.backends.wgpu_native import ffi, lib, lib_path
from wgpu.backends.wgpu_native._helpers import generate_report

from ..errors import DeviceError, DeviceLost, OutOfMemory

Handle = Any  # a C pointer to a wgpu-native object
Step = tuple[Handle | None, Handle, int, int]  # pipeline (None: the one before), bind group, grid x, grid y
Stamps = tuple["QuerySet", int, int]  # the queries for the times at which a pass begins and ends

_SPIN = 200e-6  # seconds that `wait` polls without a pause
_PAUSE = 1 / 16  # of the time waited so far, between two polls after that
_LONGEST_PAUSE = 5e-3  # seconds

_NULL = ffi.NULL
_LOST = ("device is lost", "device lost")
_FULL = ("not enough memory", "out of memory")

_KNOWN = re.compile(r"(\w+)(?: (\*)|\[(\d*)\])?")  # "WGPULimits *", "WGPUAdapter[]"


def _quick_types(parser: Any) -> None:
    """cffi parses the name of a type together with hundreds of declarations, 20 ms each time: it knows them already."""
    slow = parser.parse_type

    def parse_type(text: str) -> Any:
        match = _KNOWN.fullmatch(text)
        found = match and parser._declarations.get(f"typedef {match[1]}")
        if match is None or not found:
            return slow(text)
        kind, qualifiers = found
        if match[2]:
            return model.PointerType(kind, qualifiers)
        return kind if match[3] is None else model.ArrayType(kind, int(match[3]) if match[3] else None)

    parser.parse_type = parse_type


_quick_types(ffi._parser)
ctypes.CDLL(lib_path)  # never unloaded: objects are released until the interpreter ends


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


class _Said(threading.local):
    """What callbacks heard on this thread: errors of the library, and what signal handlers raised meanwhile."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.raised: list[BaseException] = []


_said = _Said()


def callback(signature: str) -> Callable[[Callable[..., None]], Any]:
    """A callback that does its work although a signal handler raises in it; `checked` raises that later."""

    def decorate(function: Callable[..., None]) -> Any:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]

        def again(_: object, error: BaseException, trace: TracebackType) -> None:
            _said.raised.append(error)
            function(*(trace.tb_frame.f_locals[name] for name in names))

        return ffi.callback(signature, function, onerror=again)

    return decorate


def text_of(view: Any) -> str:
    """A WGPUStringView's text."""
    if view.data == ffi.NULL:
        return ""
    return ffi.string(view.data, min(view.length, 1 << 20)).decode(errors="replace")  # type: ignore[no-any-return]


@callback("void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)")
def on_error(_device: Any, _kind: int, message: Any, _1: Any, _2: Any) -> None:
    """Where a device reports errors; it does so inside the call that fails, on the calling thread."""
    _said.errors.append(text_of(message))


class checked:
    """A block in which errors of wgpu-native become ours, as `translate` makes them of its words."""

    __slots__ = ("_translate",)

    def __init__(self, translate: Callable[[str], Exception] = as_error) -> None:
        self._translate = translate

    def __enter__(self) -> None:
        _said.errors.clear()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if _said.raised:
            raise _said.raised.pop()
        if error is None and _said.errors:
            raise self._translate("\n".join(line.rstrip() for line in _said.errors[-1].splitlines()))


def owned(release: Any, create: Any, *arguments: Any) -> Handle:
    """What the C function `create` makes, released with its last reference; NULL if it makes nothing.

    One step of Python code makes and owns it, so that no signal handler can come between the two.
    """
    made = filter(None, map(create, *zip(arguments)))
    return next(map(gcp, made, (release,)), _NULL)


def disown(handle: Handle) -> None:
    """It is not released any more."""
    gcp(handle, None)


class Recorder:
    """One command encoder; a context manager that releases it whatever happens."""

    __slots__ = ("_encoder",)

    def __init__(self, device: Handle) -> None:
        # WGPUCommandEncoder wgpuDeviceCreateCommandEncoder(WGPUDevice, WGPUCommandEncoderDescriptor const *)
        self._encoder = owned(lib.wgpuCommandEncoderRelease, lib.wgpuDeviceCreateCommandEncoder, device, ffi.NULL)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoder = None

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
        begin_pass, release_pass = lib.wgpuCommandEncoderBeginComputePass, lib.wgpuComputePassEncoderRelease
        compute_pass = owned(release_pass, begin_pass, self._encoder, descriptor)
        for pipeline, group, x, y in steps:
            if pipeline is not None:
                set_pipeline(compute_pass, pipeline)
            set_bind_group(compute_pass, 0, group, 0, null)
            dispatch(compute_pass, x, y, 1)
        # void wgpuComputePassEncoderEnd(WGPUComputePassEncoder)
        lib.wgpuComputePassEncoderEnd(compute_pass)

    def resolve(self, queries: QuerySet, target: Handle, offset: int) -> None:
        """The times of all queries into a buffer, 8 bytes each; `offset` is a multiple of 256."""
        # void wgpuCommandEncoderResolveQuerySet(WGPUCommandEncoder, WGPUQuerySet, uint32_t firstQuery,
        #     uint32_t queryCount, WGPUBuffer destination, uint64_t destinationOffset)
        lib.wgpuCommandEncoderResolveQuerySet(self._encoder, queries.handle, 0, queries.count, target, offset)

    def end(self) -> Handle:
        """What was recorded, for `submit`."""
        encoder, self._encoder = self._encoder, None
        return encoder


class QuerySet:
    """Room for timestamps."""

    __slots__ = ("count", "handle")

    def __init__(self, device: Handle, count: int) -> None:
        descriptor = ffi.new("WGPUQuerySetDescriptor *")
        descriptor.type, descriptor.count = lib.WGPUQueryType_Timestamp, count
        self.count = count
        with checked():
            # WGPUQuerySet wgpuDeviceCreateQuerySet(WGPUDevice, WGPUQuerySetDescriptor const *)
            self.handle = owned(lib.wgpuQuerySetRelease, lib.wgpuDeviceCreateQuerySet, device, descriptor)


def timestamp_period(queue: Handle) -> float:
    """Nanoseconds of one tick of the timestamps."""
    # float wgpuQueueGetTimestampPeriod(WGPUQueue)
    return float(lib.wgpuQueueGetTimestampPeriod(queue))


def bind_group(device: Handle, layout: Handle, entries: Sequence[tuple[Handle, int, int]]) -> Handle:
    """Buffers bound at 0, 1, … as (buffer, offset, nbytes)."""
    c_entries = ffi.new("WGPUBindGroupEntry[]", len(entries))
    for number, (buffer, offset, nbytes) in enumerate(entries):
        entry = c_entries[number]
        entry.binding, entry.buffer, entry.offset, entry.size = number, buffer, offset, nbytes
    descriptor = ffi.new("WGPUBindGroupDescriptor *")
    descriptor.layout, descriptor.entryCount, descriptor.entries = layout, len(entries), c_entries
    with checked():
        # WGPUBindGroup wgpuDeviceCreateBindGroup(WGPUDevice, WGPUBindGroupDescriptor const *)
        return owned(lib.wgpuBindGroupRelease, lib.wgpuDeviceCreateBindGroup, device, descriptor)


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


def submit(queue: Handle, recorded: Handle | None) -> None:
    """Hands over what was recorded or, with None, only the pending writes. What was recorded wrongly is raised here.

    The library never frees a command buffer that is not submitted, and aborts where a faulty one is. So one step of
    Python code finishes it, looks for errors, and submits it.
    """
    with checked():
        if recorded is None:
            lib.wgpuQueueSubmit(queue, 0, ffi.NULL)
            return
        # WGPUCommandBuffer wgpuCommandEncoderFinish(WGPUCommandEncoder, WGPUCommandBufferDescriptor const *)
        finished = map(lib.wgpuCommandEncoderFinish, (recorded,), (ffi.NULL,))
        kept = map(gcp, finished, (lib.wgpuCommandBufferRelease,))
        sound = compress(kept, map(not_, repeat(_said.errors)))
        # void wgpuQueueSubmit(WGPUQueue, size_t commandCount, WGPUCommandBuffer const * commands)
        next(map(lib.wgpuQueueSubmit, (queue,), (1,), zip(sound)), None)


def wait(device: Handle, done: Callable[[bool], object]) -> None:
    """Polls until `done` holds, which is told whether the queue is empty. Signal handlers may raise at any time.

    A poll that blocks would be deaf to signals, and would keep other threads from submitting.
    """
    poll, null = lib.wgpuDevicePoll, ffi.NULL
    with checked():
        # WGPUBool wgpuDevicePoll(WGPUDevice, WGPUBool wait, WGPUSubmissionIndex const *): only its lowest byte is set
        idle = poll(device, 0, null) & 1
        began = time.perf_counter()
        while not done(idle):
            waited = time.perf_counter() - began
            if waited > _SPIN:
                time.sleep(min(waited * _PAUSE, _LONGEST_PAUSE))
            idle = poll(device, 0, null) & 1


_STATUS = ffi.typeof("void (*)(uint32_t)")
_unanswered: list[Any] = []  # the callbacks that the library may still call


def map_for_reading(device: Handle, buffer: Handle, nbytes: int) -> None:
    """Maps the first bytes of a MAP_READ buffer once the work submitted so far that uses it is done.

    If that fails, or a signal handler raises, the buffer is as before.
    """
    answer: list[int] = []
    # list.append runs no Python code. It takes the first argument, the status, and leaves the others alone, as a C
    # function may where its caller cleans up.
    answered = c_callback(_STATUS, answer.append, None, None)
    info = ffi.new("WGPUBufferMapCallbackInfo *")
    info.mode = lib.WGPUCallbackMode_AllowProcessEvents
    info.callback = ffi.cast("WGPUBufferMapCallback", answered)
    _unanswered.append(answered)
    try:
        with checked():
            # WGPUFuture wgpuBufferMapAsync(WGPUBuffer, WGPUMapMode, size_t offset, size_t size,
            #     WGPUBufferMapCallbackInfo)
            lib.wgpuBufferMapAsync(buffer, lib.WGPUMapMode_Read, 0, nbytes, info[0])
        wait(device, lambda _: answer)
        if answer[0] != lib.WGPUMapAsyncStatus_Success:
            raise DeviceError(f"reading back failed: status {answer[0]}")
    except BaseException:
        lib.wgpuBufferUnmap(buffer)  # withdraws the request, which answers it
        raise
    finally:
        if answer:
            _unanswered.remove(answered)


def mapped(buffer: Handle, nbytes: int) -> memoryview:
    """The first bytes of a mapped buffer: a view that `unmap` ends. One that is not mapped aborts the process."""
    # void const * wgpuBufferGetConstMappedRange(WGPUBuffer, size_t offset, size_t size)
    return memoryview(ffi.buffer(lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes), nbytes))


def unmap(buffer: Handle) -> None:
    with checked():
        # void wgpuBufferUnmap(WGPUBuffer)
        lib.wgpuBufferUnmap(buffer)


def object_counts() -> dict[str, int]:
    """How many objects of each kind the library holds for us: what a leak test compares."""
    return {kind: report["kept"] for kind, report in generate_report()["hub"].items()}
