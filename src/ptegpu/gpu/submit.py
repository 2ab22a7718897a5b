"""The only way to submit to the GPU's queue. wgpu-native aborts the process where this module raises.

The four cases: a destroyed buffer, a mapped buffer, a command buffer submitted twice, a lost device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import SubmitError
from .buffers import GpuBuffer
from .recorder import Commanded, Recorder

if TYPE_CHECKING:
    from .device import Device


class Commands:
    """Recorded work and every GPU buffer it touches."""

    __slots__ = ("_buffers", "_recorded")

    def __init__(self, recorder: Recorder, buffers: Iterable[GpuBuffer]) -> None:
        self._recorded: list[Commanded] | None = recorder.end()
        self._buffers = tuple(buffers)

    def take(self) -> list[Commanded]:
        """What was recorded, once, and only if nothing it touches would abort the submit."""
        if self._recorded is None:
            raise SubmitError("a command buffer was submitted twice; record it again")
        for buffer in self._buffers:
            if buffer.state != "ready":
                raise SubmitError(f"buffer {buffer.name} is {buffer.state}, but submitted work uses it")
        recorded, self._recorded = self._recorded, None
        return recorded


def submit(device: Device, commands: Commands | None = None) -> None:
    """Starts recorded work, after the writes before it; without any, the writes alone."""
    if device.info.type == "software":
        device.api.drain()  # for the work before: such a driver waits in the submit, deaf to signals
    device.check_alive()
    recorded = [] if commands is None else commands.take()
    device.api.submit(recorded)
    device.counters.submits += max(1, len(recorded))
    device.pending_bytes = 0
