"""Errors of a C library, the loss of its device, and what signal handlers raise in its callbacks, as exceptions.

Every call of a library that may fail is made in a `checked` block. What callbacks hear meanwhile is raised at its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from ..errors import DeviceLost


class Report(NamedTuple):
    """An error as a library reports it."""

    out_of_memory: bool
    text: str


class _Reported(threading.local):
    """What callbacks heard on this thread: errors of a library, and what signal handlers raised meanwhile."""

    def __init__(self) -> None:
        self.errors: list[Report] = []
        self.raised: list[BaseException] = []


reported = _Reported()


def callback(ffi: Any, signature: str) -> Callable[[Callable[..., None]], Any]:
    """Make a callback that does its work although a signal handler raises in it; `checked` raises that later."""

    def decorate(function: Callable[..., None]) -> Any:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]

        def again(_: object, error: BaseException, trace: TracebackType) -> None:
            reported.raised.append(error)
            function(*(trace.tb_frame.f_locals[name] for name in names))

        return ffi.callback(signature, function, onerror=again)

    return decorate


def error_callback(lib: Any, ffi: Any) -> Any:
    """Make the callback with which the devices of an engine report errors."""

    @callback(ffi, "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)")
    def on_error(_device: Any, kind: int, message: Any, _1: Any, _2: Any) -> None:
        reported.errors.append(Report(kind == lib.WGPUErrorType_OutOfMemory, text_of(ffi, message)))

    return on_error


def text_of(ffi: Any, view: Any) -> str:
    """Return the text of a WGPUStringView."""
    if view.data == ffi.NULL:
        return ""
    return ffi.string(view.data, min(view.length, 1 << 20)).decode(errors="replace")  # type: ignore[no-any-return]


class checked:
    """A block in which errors of a library become ours, as `translate` makes them of its reports.

    `lost` says why the device is gone; it stays empty as long as it is there.
    """

    __slots__ = ("_lost", "_translate")

    def __init__(self, translate: Callable[[Report], Exception], lost: Sequence[str] = ()) -> None:
        self._translate, self._lost = translate, lost

    def __enter__(self) -> None:
        reported.errors.clear()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        raise_delayed()
        if error is None and self._lost:
            raise lost(self._lost[0])
        if error is None and reported.errors:
            raise self._translate(reported.errors[-1])


def raise_delayed() -> None:
    """Raise what a signal handler raised in a callback."""
    if reported.raised:
        raise reported.raised.pop()


def lost(reason: str) -> DeviceLost:
    """Return the error for a device that is gone."""
    return DeviceLost(f"the GPU device is lost ({reason}); load the program again")
