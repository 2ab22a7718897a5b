"""GPU buffers with the state that WebGPU does not report, and a bounded pool of released ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from . import webgpu
from .waiting import Request
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
    """A buffer. `state` is what a submit must know: only a ready buffer may be used by submitted work.

    `dirty` says that it comes from the pool with the bytes of its former owner; a new buffer holds zeros. `owners`
    counts those who gave it back.
    """

    __slots__ = ("_request", "api", "dirty", "handle", "kind", "name", "nbytes", "owners", "state")

    def __init__(self, api: WebGPU, name: str, nbytes: int, kind: Kind) -> None:
        self.api, self.handle = api, api.buffer(name, nbytes, _USAGE[kind])
        self.name, self.nbytes, self.kind = name, nbytes, kind
        self.state: State = "mapped" if kind == "upload" else "ready"
        self._request: Request | None = None
        self.dirty = False
        self.owners = 0

    def read(self, device: Device, nbytes: int) -> memoryview:
        """Map the first bytes of a staging buffer once the work that fills it is done; `unmap` ends the view.

        Where that fails or is interrupted, it can be tried again.
        """
        if self.state != "mapped":
            request, self._request = self._request or Request(self.api, "WGPUBufferMapCallback"), None
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
        """Return all bytes of an upload buffer, which is mapped; `unmap` ends the view."""
        return self.api.writable(self.handle, self.nbytes)

    def ask_to_write(self, request: Request) -> None:
        """Have an upload buffer mapped when the work that uses it is done."""
        self.state = "mapped"
        self.api.map_async(self.handle, self.api.lib.WGPUMapMode_Write, self.nbytes, request)

    def unmap(self) -> None:
        self.api.unmap(self.handle)
        self.state = "ready"

    def destroy(self) -> None:
        self.state = "destroyed"
        self.api.destroy_buffer(self.handle)


class BufferPool:
    """Released buffers, reused by kind and exact size. The oldest go when their bytes or their count exceed a bound."""

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
