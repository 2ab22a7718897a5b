"""A command encoder by raw calls of the C library, which dominate the host's cost per dispatch."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from .native import Handle, owned

Commands: TypeAlias = tuple[Handle, Iterable[Any]]  # an encoder, and the calls to make before it is finished
Stamps = tuple["QuerySet", int, int]  # the queries for the begin and the end of a pass


class Steps(NamedTuple):
    """The dispatches of a pass, column by column."""

    pipelines: Sequence[Handle]
    groups: Sequence[Handle]
    x: Sequence[int]  # of their grids
    y: Sequence[int]

    def part(self, first: int, end: int) -> Steps:
        return Steps(*(column[first:end] for column in self))


FIRST, FURTHER = 64, 256  # dispatches per part of a long pass; the GPU starts early with a short first part
LONG = 3 * FIRST


class Recorder:
    """Commands to be submitted together; a context manager that always releases them.

    A long pass is recorded in parts, while earlier parts are submitted.
    """

    __slots__ = ("_device", "_encoder", "_ffi", "_lib", "_parts")

    def __init__(self, lib: Any, ffi: Any, device: Handle) -> None:
        self._lib, self._ffi, self._device = lib, ffi, device
        self._parts: list[Commands] = []  # before those of the current encoder
        self._encoder = self._make()

    def _make(self) -> Handle:
        lib = self._lib
        # WGPUCommandEncoder wgpuDeviceCreateCommandEncoder(WGPUDevice, WGPUCommandEncoderDescriptor const *)
        make = lib.wgpuDeviceCreateCommandEncoder
        return owned(lib.wgpuCommandEncoderRelease, make, self._device, self._ffi.NULL)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._encoder, self._parts = None, []

    def copy(self, source: Handle, source_offset: int, target: Handle, target_offset: int, nbytes: int) -> None:
        # void wgpuCommandEncoderCopyBufferToBuffer(WGPUCommandEncoder, WGPUBuffer source, uint64_t sourceOffset,
        #     WGPUBuffer destination, uint64_t destinationOffset, uint64_t size)
        copy = self._lib.wgpuCommandEncoderCopyBufferToBuffer
        copy(self._encoder, source, source_offset, target, target_offset, nbytes)

    def clear(self, buffer: Handle, offset: int, nbytes: int) -> None:
        # void wgpuCommandEncoderClearBuffer(WGPUCommandEncoder, WGPUBuffer, uint64_t offset, uint64_t size)
        self._lib.wgpuCommandEncoderClearBuffer(self._encoder, buffer, offset, nbytes)

    def compute_soon(self, steps: Steps) -> None:
        """Record a long pass as several: the GPU runs the first while the others are recorded."""
        count = len(steps.groups)
        if count < LONG:
            self.compute(steps)
            return
        bounds = [0, *range(FIRST, count - FIRST, FURTHER), count]
        for first, end in itertools.pairwise(bounds):
            self._parts.append((self._encoder, self._calls(steps.part(first, end), self._ffi.NULL)))
            self._encoder = self._make()

    def compute(self, steps: Steps, stamps: Stamps | None = None) -> None:
        """Record one compute pass; with `stamps`, the GPU notes its begin and end."""
        ffi = self._ffi
        descriptor = ffi.NULL
        if stamps is not None:
            queries, begin, end = stamps
            writes = ffi.new("WGPUPassTimestampWrites *")
            writes.querySet, writes.beginningOfPassWriteIndex, writes.endOfPassWriteIndex = queries.handle, begin, end
            descriptor = ffi.new("WGPUComputePassDescriptor *")
            descriptor.timestampWrites = writes
        deque(self._calls(steps, descriptor), 0)

    def _calls(self, steps: Steps, descriptor: Any) -> Iterator[Any]:
        """Return the calls of a pass, made during iteration without a step of Python code between them."""
        lib, null = self._lib, self._ffi.NULL
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
        calls = zip(  # in turn
            map(set_pipeline, this, steps.pipelines),
            map(set_bind_group, this, zero, steps.groups, zero, repeat(null)),
            map(dispatch, this, steps.x, steps.y, repeat(1)),
        )
        # void wgpuComputePassEncoderEnd(WGPUComputePassEncoder)
        return itertools.chain(calls, map(lib.wgpuComputePassEncoderEnd, (compute_pass,)))

    def resolve(self, queries: QuerySet, target: Handle, offset: int) -> None:
        """Write the times of all queries into a buffer, 8 bytes each; `offset` is a multiple of 256."""
        # void wgpuCommandEncoderResolveQuerySet(WGPUCommandEncoder, WGPUQuerySet, uint32_t firstQuery,
        #     uint32_t queryCount, WGPUBuffer destination, uint64_t destinationOffset)
        self._lib.wgpuCommandEncoderResolveQuerySet(self._encoder, queries.handle, 0, queries.size, target, offset)

    @property
    def ended(self) -> bool:
        return self._encoder is None

    def end(self) -> list[Commands]:
        """Return the recorded commands, for `submit`."""
        commands: list[Commands] = [*self._parts, (self._encoder, ())]
        self._encoder, self._parts = None, []
        return commands


class QuerySet(NamedTuple):
    """A set of timestamp queries."""

    handle: Handle
    size: int
