"""The only way to submit to the GPU's queue. wgpu-native aborts the process where this module raises.

The four cases: a destroyed buffer, a mapped buffer, a command buffer submitted twice, a lost device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import SubmitError
from .buffers import GpuBuffer
from .recorder import Recorder

if TYPE_CHECKING:
    from .device import Device


def submit(device: Device, recorder: Recorder | None = None, buffers: Iterable[GpuBuffer] = ()) -> None:
    """Start recorded work, which uses `buffers`, after the writes before it; without any, the writes alone."""
    if device.info.type == "software":
        device.api.drain()  # for the work before: such a driver waits in the submit, deaf to signals
    device.check_alive()
    if recorder is not None and recorder.ended:
        raise SubmitError("a command buffer was submitted twice; record it again")
    for buffer in buffers:
        if buffer.state != "ready":
            raise SubmitError(f"buffer {buffer.name} is {buffer.state}, but submitted work uses it")
    recorded = [] if recorder is None else recorder.end()
    device.api.submit(recorded)
    device.counters.submits += max(1, len(recorded))
    device.pending_bytes = 0
