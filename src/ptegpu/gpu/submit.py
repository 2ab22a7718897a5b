"""The one door to the GPU's queue. wgpu-native aborts the process where this module raises.

The four cases: a destroyed buffer, a mapped buffer, a command buffer submitted twice, a lost device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import SubmitError
from . import native
from .buffers import GpuBuffer

if TYPE_CHECKING:
    from .device import Device


class Commands:
    """A finished command buffer and every GPU buffer it touches. wgpu-native frees it only once it was submitted."""

    __slots__ = ("_buffers", "_handle")

    def __init__(self, handle: native.Handle, buffers: Iterable[GpuBuffer]) -> None:
        self._handle: native.Handle | None = handle
        self._buffers = tuple(buffers)

    def take(self) -> native.Handle:
        """The handle, once, and only if nothing it touches would abort the submit."""
        if self._handle is None:
            raise SubmitError("a command buffer was submitted twice; record it again")
        for buffer in self._buffers:
            if buffer.state != "ready":
                raise SubmitError(f"buffer {buffer.name} is {buffer.state}, but submitted work uses it")
        handle, self._handle = self._handle, None
        return handle

    def __del__(self) -> None:
        if self._handle is not None and native is not None:
            native.release_commands(self._handle)


def submit(device: Device, commands: Commands) -> int:
    """Starts recorded work, after the writes before it; returns the submission's index."""
    device.check_alive()
    handle = commands.take()
    try:
        submission = native.submit(device.queue, handle)
    finally:
        native.release_commands(handle)
    _count(device)
    return submission


def flush(device: Device) -> int:
    """Starts the pending writes alone; returns the submission's index."""
    device.check_alive()
    submission = native.submit(device.queue, None)
    _count(device)
    return submission


def _count(device: Device) -> None:
    device.counters.submits += 1
    device.pending_bytes = 0
