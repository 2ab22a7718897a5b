"""Recording commands by raw calls: what a run costs the host per dispatch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

from .held import Handle, owned

Stamps = tuple["QuerySet", int, int]  # the queries for the times at which a pass begins and ends


class Steps(NamedTuple):
    """The dispatches of a pass, column by column."""

    pipelines: Sequence[Handle]
    groups: Sequence[Handle]
    x: Sequence[int]  # of their grids
    y: Sequence[int]


class Recorder:
    """One command encoder; a context manager that releases it whatever happens."""

    __slots__ = ("_encoder", "_ffi", "_lib")

    def __init__(self, lib: Any, ffi: Any, device: Handle) -> None:
        self._lib, self._ffi = lib, ffi
        # WGPUCommandEncoder wgpuDeviceCreateCommandEncoder(WGPUDevice, WGPUCommandEncoderDescriptor const *)
        self._encoder = owned(lib.wgpuCommandEncoderRelease, lib.wgpuDeviceCreateCommandEncoder, device, ffi.NULL)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoder = None

    def copy(self, source: Handle, source_offset: int, target: Handle, target_offset: int, nbytes: int) -> None:
        # void wgpuCommandEncoderCopyBufferToBuffer(WGPUCommandEncoder, WGPUBuffer source, uint64_t sourceOffset,
        #     WGPUBuffer destination, uint64_t destinationOffset, uint64_t size)
        copy = self._lib.wgpuCommandEncoderCopyBufferToBuffer
        copy(self._encoder, source, source_offset, target, target_offset, nbytes)

    def clear(self, buffer: Handle, nbytes: int) -> None:
        # void wgpuCommandEncoderClearBuffer(WGPUCommandEncoder, WGPUBuffer, uint64_t offset, uint64_t size)
        self._lib.wgpuCommandEncoderClearBuffer(self._encoder, buffer, 0, nbytes)

    def compute(self, steps: Steps, stamps: Stamps | None = None) -> None:
        """One compute pass; with `stamps`, the GPU notes when it begins and ends."""
        lib, ffi = self._lib, self._ffi
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
        this, zero = repeat(compute_pass), repeat(0)
        calls = zip(  # which are made in turns, without a step of Python code between them
            map(set_pipeline, this, steps.pipelines),
            map(set_bind_group, this, zero, steps.groups, zero, repeat(null)),
            map(dispatch, this, steps.x, steps.y, repeat(1)),
        )
        deque(calls, 0)
        # void wgpuComputePassEncoderEnd(WGPUComputePassEncoder)
        lib.wgpuComputePassEncoderEnd(compute_pass)

    def resolve(self, queries: QuerySet, target: Handle, offset: int) -> None:
        """The times of all queries into a buffer, 8 bytes each; `offset` is a multiple of 256."""
        # void wgpuCommandEncoderResolveQuerySet(WGPUCommandEncoder, WGPUQuerySet, uint32_t firstQuery,
        #     uint32_t queryCount, WGPUBuffer destination, uint64_t destinationOffset)
        self._lib.wgpuCommandEncoderResolveQuerySet(self._encoder, queries.handle, 0, queries.count, target, offset)

    def end(self) -> Handle:
        """What was recorded, for `submit`."""
        encoder, self._encoder = self._encoder, None
        return encoder


class QuerySet:
    """Room for timestamps."""

    __slots__ = ("count", "handle")

    def __init__(self, handle: Handle, count: int) -> None:
        self.handle, self.count = handle, count
