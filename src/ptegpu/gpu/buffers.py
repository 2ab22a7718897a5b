"""GPU buffers with the state that wgpu-native does not tell, and a bounded pool of released ones."""

from __future__ import annotations

from typing import Any, Literal

import wgpu

from . import native

Kind = Literal["storage", "uniform", "staging", "queries"]
State = Literal["ready", "mapped", "destroyed"]

_STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
_USAGE: dict[Kind, int] = {
    "storage": _STORAGE,
    "uniform": _STORAGE | wgpu.BufferUsage.UNIFORM,
    "staging": wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST,
    "queries": wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC,
}


class GpuBuffer:
    """A buffer. `state` is what a submit must know: only a ready buffer may be used by submitted work.

    `dirty` says that it comes from the pool with the bytes of its former owner; a new buffer holds zeros.
    """

    __slots__ = ("dirty", "handle", "kind", "name", "nbytes", "state", "wrapped")

    def __init__(self, device: Any, name: str, nbytes: int, kind: Kind) -> None:
        with native.checked():
            self.wrapped = device.create_buffer(label=name, size=nbytes, usage=_USAGE[kind])
        self.handle = native.handle_of(self.wrapped)
        self.name, self.nbytes, self.kind = name, nbytes, kind
        self.state: State = "ready"
        self.dirty = False

    def read(self, device: native.Handle, nbytes: int, submission: int) -> memoryview:
        """Maps the first bytes of a staging buffer once `submission` is done; `unmap` ends the view."""
        self.state = "mapped"
        try:
            return native.map_for_reading(device, self.handle, nbytes, submission)
        except BaseException:
            self.destroy()
            raise

    def unmap(self) -> None:
        native.unmap(self.handle)
        self.state = "ready"

    def destroy(self) -> None:
        self.state = "destroyed"
        self.wrapped.destroy()


class BufferPool:
    """Released buffers, reused by kind and exact size. The oldest go when their bytes or their count exceed a bound."""

    def __init__(self, max_bytes: int = 256 << 20, max_count: int = 256) -> None:
        self._max_bytes, self._max_count = max_bytes, max_count
        self._free: list[GpuBuffer] = []  # oldest first
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._free)

    def take(self, nbytes: int, kind: Kind) -> GpuBuffer | None:
        """A released buffer, if there is one of that kind and size."""
        for position in range(len(self._free) - 1, -1, -1):
            buffer = self._free[position]
            if buffer.nbytes == nbytes and buffer.kind == kind:
                self.nbytes -= nbytes
                return self._free.pop(position)
        return None

    def give(self, buffer: GpuBuffer) -> None:
        if buffer.state != "ready" or buffer.nbytes > self._max_bytes:
            buffer.destroy()
            return
        buffer.dirty = True
        self._free.append(buffer)
        self.nbytes += buffer.nbytes
        while self.nbytes > self._max_bytes or len(self._free) > self._max_count:
            oldest = self._free.pop(0)
            self.nbytes -= oldest.nbytes
            oldest.destroy()

    def clear(self) -> None:
        for buffer in self._free:
            buffer.destroy()
        self._free, self.nbytes = [], 0
