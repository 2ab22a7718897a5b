"""Bytes on their way to the GPU: written into mapped buffers, and copied from there by the work that needs them.

A buffer is asked for again as soon as the work is submitted, and is mapped once that is done. So a run that uploads as
much as one before it allocates nothing, and its bytes are copied once by the host.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from . import threads
from .buffers import GpuBuffer
from .waiting import Request

if TYPE_CHECKING:
    from .device import Device

LARGEST = 32 << 20  # bytes of an array; larger ones are written in pieces instead
_SMALLEST = 64 << 10
_KEPT_BYTES, _KEPT = 256 << 20, 16  # of all arenas
_ALIGN = 16
_FEW = 4096  # bytes that are copied twice rather than looked at
_BY_THREADS = 4 << 20  # bytes from which on several threads copy
_THREADS = min(4, os.cpu_count() or 1)


def room(nbytes: int) -> int:
    """Return what `nbytes` bytes take in an arena."""
    return -(-nbytes // _ALIGN) * _ALIGN


class Arena:
    """A buffer to write into, from its start on, until its work is submitted."""

    __slots__ = ("_used", "buffer", "request")

    def __init__(self, buffer: GpuBuffer) -> None:
        self.buffer, self.request = buffer, Request(buffer.api, "WGPUBufferMapCallback")
        self._used = 0

    @property
    def left(self) -> int:
        return self.buffer.nbytes - self._used

    def put(self, data: np.ndarray) -> int:
        """Copy elements in their order and return where; a tail of 1 to 3 bytes is padded with zeros."""
        at, nbytes, view = self._used, data.nbytes, self.buffer.writable()
        end = at + ((nbytes + 3) & ~3)
        self._used += room(nbytes)
        if nbytes <= _FEW:
            view[at:end] = data.tobytes().ljust(end - at, b"\0")
            return at
        if nbytes & 3:
            view[at + nbytes : end] = bytes(-nbytes & 3)
        target: np.ndarray = np.ndarray(data.shape, data.dtype, view, at)
        if nbytes < _BY_THREADS or not data.flags.c_contiguous or _THREADS == 1:
            np.copyto(target, data)
        else:
            _copy_by_threads(self, target, data)
        return at

    def close(self) -> None:
        """Unmap: the work that copies from it may be submitted."""
        self.buffer.unmap()

    def open(self) -> None:
        """Begin anew: it is mapped again."""
        self._used = 0


class Uploads:
    """The arenas of a device. Its caller holds the device's lock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[Arena] = []
        self._asked: list[Arena] = []  # oldest first

    def take(self, nbytes: int) -> Arena:
        """Return an arena with room for `nbytes` bytes."""
        arena = self._found(nbytes)
        if arena is None and self._asked:
            with self._device.api.checked():
                self._device.api.poll()
            arena = self._found(nbytes)
        if arena is None:
            size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
            return Arena(self._device.buffer("uploads", size, "upload"))
        arena.open()
        return arena

    def give(self, arena: Arena) -> None:
        """Take an arena back, after the submit that copies from it."""
        arena.request.answer.clear()
        self._asked.append(arena)
        arena.buffer.ask_to_write(arena.request)
        kept = [*self._free, *self._asked]
        if len(kept) > _KEPT or sum(a.buffer.nbytes for a in kept) > _KEPT_BYTES:
            (self._free or self._asked).pop(0).buffer.destroy()

    def clear(self) -> None:
        for arenas in (self._free, self._asked):
            while arenas:
                arenas.pop().buffer.destroy()

    def _found(self, nbytes: int) -> Arena | None:
        for arena in [a for a in self._asked if a.request.answer]:
            self._asked.remove(arena)
            if arena.request.succeeded:
                self._free.append(arena)
        fitting = [a for a in self._free if a.buffer.nbytes >= nbytes]
        if not fitting:
            return None
        best = min(fitting, key=lambda a: a.buffer.nbytes)
        self._free.remove(best)
        return best


def _copy_by_threads(arena: Arena, target: np.ndarray, data: np.ndarray) -> None:
    """Each thread holds the arena: it stays mapped until the last is done, even if nobody waits for them."""
    target, data = target.reshape(-1), data.reshape(-1)
    step = -(-data.size // _THREADS)

    def copy(first: int, _: Arena) -> None:
        np.copyto(target[first : first + step], data[first : first + step])

    pool = threads.pool("upload", _THREADS)
    for job in [pool.begin(partial(copy, first, arena)) for first in range(0, data.size, step)]:
        job.result()
