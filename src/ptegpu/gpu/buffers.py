"""GPU buffers with the state that WebGPU does not report, a bounded pool of released ones, and buffers for uploads.

Bytes for the GPU are written into mapped buffers, and copied from there by the work that needs them. Such a buffer is
mapped again as soon as that work is done. So a run that uploads as much as an earlier one allocates nothing, and the
host copies its bytes once.
"""

from __future__ import annotations

import os
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from . import threads, webgpu
from .native import NativeRequest
from .webgpu import COPY_DST, COPY_SRC, WebGPU

if TYPE_CHECKING:
    from .device import Device


Kind = Literal["storage", "uniform", "staging", "upload", "queries"]
State = Literal["ready", "mapped", "destroyed"]

_STORAGE = webgpu.STORAGE | COPY_SRC | COPY_DST
_USAGE: dict[Kind, int] = {
    "storage": _STORAGE,
    "uniform": _STORAGE | webgpu.UNIFORM,
    "staging": webgpu.MAP_READ | COPY_DST,
    "upload": webgpu.MAP_WRITE | COPY_SRC,
    "queries": webgpu.QUERY_RESOLVE | COPY_SRC,
}


class GpuBuffer:
    """A buffer, or a slice of a larger one, its `slab`: `nbytes` bytes of the WebGPU buffer `handle` from `offset`.

    Submitted work may only use a buffer whose `state` is "ready"; of a slice, the state of the slab counts. A `dirty`
    buffer comes from the pool with the bytes of its former owner; a new buffer holds zeros. `owners` counts how often
    it was given back.
    """

    __slots__ = (
        "_request",
        "api",
        "dirty",
        "handle",
        "kind",
        "name",
        "nbytes",
        "offset",
        "owners",
        "slab",
        "slices",
        "state",
    )

    def __init__(self, api: WebGPU, name: str, nbytes: int, kind: Kind) -> None:
        self.api, self.handle = api, api.buffer(name, nbytes, _USAGE[kind])
        self.name, self.nbytes, self.kind = name, nbytes, kind
        self.state: State = "mapped" if kind == "upload" else "ready"
        self._request: NativeRequest | None = None
        self.dirty = False
        self.owners = 0
        self.offset = 0
        self.slab: GpuBuffer | None = None
        self.slices = 0  # in use

    def slice(self, name: str, offset: int, nbytes: int) -> GpuBuffer:
        """Return a slice of this buffer, which is released with its last slice."""
        part = copy(self)
        part.name, part.offset, part.nbytes, part.slab, part.slices = name, offset, nbytes, self, 0
        part.owners = 0
        self.slices += 1
        return part

    def read(self, device: Device, nbytes: int) -> memoryview:
        """Map the first bytes of a staging buffer once the work that fills it is done; `unmap` ends the view.

        If that fails or is interrupted, it can be called again.
        """
        if self.state != "mapped":
            request, self._request = self._request or NativeRequest(self.api, "WGPUBufferMapCallback"), None
            try:
                self.state = "mapped"
                self.api.map_for_reading(self.handle, nbytes, request)
            except BaseException:
                self.api.withdraw(self.handle)
                self.state = "ready"
                raise
            self._request = request
            device.check_alive()
        return self.api.mapped(self.handle, nbytes)

    def writable(self) -> memoryview:
        """Return all bytes of a mapped upload buffer; `unmap` ends the view."""
        return self.api.writable(self.handle, self.nbytes)

    def ask_to_write(self, request: NativeRequest) -> None:
        """Map an upload buffer as soon as the work that uses it is done."""
        self.state = "mapped"
        self.api.map_async(self.handle, self.api.lib.WGPUMapMode_Write, self.nbytes, request)

    def unmap(self) -> None:
        self.api.unmap(self.handle)
        self.state = "ready"

    def destroy(self) -> None:
        self.state = "destroyed"
        self.api.destroy_buffer(self.handle)


class BufferPool:
    """Released buffers, reused by kind and exact size. Beyond a bound of bytes or count, the oldest go."""

    def __init__(self, max_bytes: int = 256 << 20, max_count: int = 256) -> None:
        self._max_bytes, self._max_count = max_bytes, max_count
        self._free: list[GpuBuffer] = []  # oldest first

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._free)

    def __len__(self) -> int:
        return len(self._free)

    def take(self, nbytes: int, kind: Kind) -> GpuBuffer | None:
        """Return a released buffer of that kind and size, or None."""
        for position in range(len(self._free) - 1, -1, -1):
            buffer = self._free[position]
            if buffer.nbytes == nbytes and buffer.kind == kind:
                return self._free.pop(position)
        return None

    def give(self, buffer: GpuBuffer) -> None:
        buffer.owners += 1
        slab = buffer.slab
        if slab is not None:
            slab.slices -= 1
            if not slab.slices:
                self.give(slab)
            return
        if buffer.state != "ready" or buffer.nbytes > self._max_bytes:
            buffer.destroy()
            return
        buffer.dirty = True
        self._free.append(buffer)
        while self.nbytes > self._max_bytes or len(self._free) > self._max_count:
            self._free.pop(0).destroy()

    def clear(self) -> None:
        while self._free:
            self._free.pop().destroy()


MAX_UPLOAD = 32 << 20  # bytes of an array; larger ones are written in pieces instead
_MIN_ARENA = 64 << 10  # bytes
_MAX_BYTES, _MAX_COUNT = 256 << 20, 16  # of all arenas
_ALIGN = 16
_SMALL = 4096  # bytes up to which copying twice is cheaper than viewing
_BY_THREADS = 4 << 20  # bytes from which several threads copy
_THREADS = min(4, os.cpu_count() or 1)


def room(nbytes: int) -> int:
    """Return the room that `nbytes` bytes take in an arena."""
    return -(-nbytes // _ALIGN) * _ALIGN


class Arena:
    """A mapped buffer, filled from its start until the work that copies from it is submitted."""

    __slots__ = ("_used", "buffer", "request")

    def __init__(self, buffer: GpuBuffer) -> None:
        self.buffer, self.request = buffer, NativeRequest(buffer.api, "WGPUBufferMapCallback")
        self._used = 0

    @property
    def left(self) -> int:
        return self.buffer.nbytes - self._used

    def put(self, data: np.ndarray) -> int:
        """Copy an array in logical order and return its offset; a tail of 1 to 3 bytes is padded with zeros."""
        offset, nbytes, view = self._used, data.nbytes, self.buffer.writable()
        end = offset + ((nbytes + 3) & ~3)
        self._used += room(nbytes)
        if nbytes <= _SMALL:
            view[offset:end] = data.tobytes().ljust(end - offset, b"\0")
            return offset
        if nbytes & 3:
            view[offset + nbytes : end] = bytes(-nbytes & 3)
        target: np.ndarray = np.ndarray(data.shape, data.dtype, view, offset)
        if nbytes < _BY_THREADS or not data.flags.c_contiguous or _THREADS == 1:
            np.copyto(target, data)
        else:
            _copy_by_threads(self, target, data)
        return offset

    def close(self) -> None:
        """Unmap the buffer, so that the work that copies from it may be submitted."""
        self.buffer.unmap()

    def reopen(self) -> None:
        """Start from the beginning; the buffer is mapped again."""
        self._used = 0


class Uploads:
    """The arenas of a device. Its caller holds the device's lock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[Arena] = []
        self._requested: list[Arena] = []  # not mapped yet; oldest first

    def take(self, nbytes: int) -> Arena:
        """Return an arena with room for `nbytes` bytes."""
        arena = self._pop_free(nbytes)
        if arena is None and self._requested:
            with self._device.api.checked():
                self._device.api.poll()
            arena = self._pop_free(nbytes)
        if arena is None:
            size = max(_MIN_ARENA, 1 << (nbytes - 1).bit_length())
            return Arena(self._device.buffer("uploads", size, "upload"))
        arena.reopen()
        return arena

    def give(self, arena: Arena) -> None:
        """Take an arena back, after the submit that copies from it."""
        arena.request.answer.clear()
        self._requested.append(arena)
        arena.buffer.ask_to_write(arena.request)
        arenas = [*self._free, *self._requested]
        if len(arenas) > _MAX_COUNT or sum(a.buffer.nbytes for a in arenas) > _MAX_BYTES:
            (self._free or self._requested).pop(0).buffer.destroy()

    def clear(self) -> None:
        for arenas in (self._free, self._requested):
            while arenas:
                arenas.pop().buffer.destroy()

    def _pop_free(self, nbytes: int) -> Arena | None:
        """Return the smallest free arena with this room, or None."""
        for arena in [a for a in self._requested if a.request.answer]:
            self._requested.remove(arena)
            if arena.request.succeeded:
                self._free.append(arena)
        large_enough = [a for a in self._free if a.buffer.nbytes >= nbytes]
        if not large_enough:
            return None
        best = min(large_enough, key=lambda a: a.buffer.nbytes)
        self._free.remove(best)
        return best


def _copy_by_threads(arena: Arena, target: np.ndarray, data: np.ndarray) -> None:
    """Copy with several threads. Each holds the arena, so it stays mapped until the last is done."""
    target, data = target.reshape(-1), data.reshape(-1)
    step = -(-data.size // _THREADS)

    def copy(first: int, _: Arena) -> None:
        np.copyto(target[first : first + step], data[first : first + step])

    pool = threads.pool("upload", _THREADS)
    for job in [pool.begin(partial(copy, first, arena)) for first in range(0, data.size, step)]:
        job.result()
