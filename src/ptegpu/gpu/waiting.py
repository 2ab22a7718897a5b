"""Waiting for a C library: `until` is the one place that does, and a `Request` is what is waited for.

Signal handlers may raise at any time. The library answers a request all the same, which lives until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from _cffi_backend import callback as c_callback  # type: ignore[import-untyped]

from ..limits import tick
from . import ownership

if TYPE_CHECKING:
    from .webgpu import WebGPU

_PAUSE = 1 / 16  # of the time waited so far, between two polls
_LONGEST_PAUSE = 5e-3  # seconds


def until(api: WebGPU, done: Callable[[object], object]) -> None:
    """Poll until `done` holds for what a poll returns, the first `api.spin` seconds without a pause.

    A poll that blocks would be deaf to signals, and would keep other threads from submitting.
    """
    poll = api.poll
    with api.checked():
        polled = poll()
        began = time.perf_counter()
        while not done(polled):
            waited = time.perf_counter() - began
            if waited > api.spin:
                tick()
                time.sleep(min(waited * _PAUSE, _LONGEST_PAUSE))
            polled = poll()


class Request:
    """What a library calls back when it has done what it was asked for; it may be used again then."""

    __slots__ = ("_called", "_success", "answer", "info")

    def __init__(self, api: WebGPU, kind: str) -> None:
        self.answer: list[int] = []
        self._success = api.lib.WGPUMapAsyncStatus_Success
        # list.append runs no Python code. It takes the first argument, the status, and leaves the others alone, as a C
        # function may where its caller cleans up.
        self._called = c_callback(api.ffi.typeof("void (*)(uint32_t)"), self.answer.append, None, None)
        self.info = api.ffi.new(f"{kind}Info *")
        self.info.mode = api.lib.WGPUCallbackMode_AllowProcessEvents
        self.info.callback = api.ffi.cast(kind, self._called)

    def expect(self) -> None:
        """Live at least until the answer comes."""
        self.answer.clear()
        ownership.expect(self, self.answer)

    def wait(self, api: WebGPU) -> None:
        until(api, lambda _: self.answer)

    @property
    def succeeded(self) -> bool:
        """Return whether a buffer is mapped."""
        return self.answer[0] == self._success  # type: ignore[no-any-return]
