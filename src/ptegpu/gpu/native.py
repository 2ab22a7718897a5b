"""Calls of a C library that survive signal handlers: owners of its objects, callbacks, errors, and waiting.

A signal handler may raise between any two steps of Python code. So every object is owned from the call that makes it
on, and no finalizer and no callback that a wait depends on runs Python code (cffi would print and forget what is raised
there), unless it then does its work a second time (`callback`). The library answers every `NativeRequest`, even after
its caller was interrupted, so a request lives until then.

Every call of a library that may fail is made in a `checked` block. Errors that callbacks report meanwhile are
raised at its end. `until` is the only function that waits for a library.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from _cffi_backend import FFI, gcp  # type: ignore[import-untyped]
from _cffi_backend import callback as c_callback

from ..errors import DeviceLost
from ..limits import tick

if TYPE_CHECKING:
    from .webgpu import WebGPU


Handle = Any  # a C pointer to an object of the library

_unanswered: dict[int, tuple[Any, Sized]] = {}  # pending callbacks, each with its answers, by the answers' id
_PAUSE = 1 / 16  # of the time waited so far, between two polls
_LONGEST_PAUSE = 5e-3  # seconds


def owned(release: Any, create: Any, *arguments: Any) -> Handle:
    """Return the object that the C function `create` makes, released with its last reference; NULL if it fails.

    A single step of Python code makes and owns the object, so no signal handler can come between the two.
    """
    handles = filter(None, map(create, *zip(arguments)))
    return next(map(gcp, handles, (release,)), FFI.NULL)


def disown(handle: Handle) -> None:
    """Leak an object on purpose."""
    gcp(handle, None)


def disown_all(objects: Iterable[object]) -> None:
    """Leak the library handles among `objects` on purpose."""
    handle_type, typeof = type(gcp(FFI().new("int *"), id)), FFI().typeof
    for handle in objects:
        if type(handle) is handle_type and "WGPU" in typeof(handle).cname:
            disown(handle)


def expect(called: Any, answers: Sized) -> None:
    """Keep a callback alive until it has answered, even if the code that waits for it is interrupted."""
    settle()
    _unanswered[id(answers)] = called, answers


def settle() -> None:
    """Forget the callbacks that have answered."""
    for key in [key for key, (_, answers) in [*_unanswered.items()] if answers]:
        _unanswered.pop(key, None)


class Report(NamedTuple):
    """An error as a library reports it."""

    out_of_memory: bool
    text: str


class _Reported(threading.local):
    """The errors that callbacks of this thread got from a library, and those that signal handlers raised in them."""

    def __init__(self) -> None:
        self.errors: list[Report] = []
        self.raised: list[BaseException] = []


reported = _Reported()


def callback(ffi: Any, signature: str) -> Callable[[Callable[..., None]], Any]:
    """Make a callback that does its work even if a signal handler raises in it; `checked` raises that error later."""

    def decorate(function: Callable[..., None]) -> Any:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]

        def again(_: object, error: BaseException, trace: TracebackType) -> None:
            reported.raised.append(error)
            function(*(trace.tb_frame.f_locals[name] for name in names))

        return ffi.callback(signature, function, onerror=again)

    return decorate


def error_callback(lib: Any, ffi: Any) -> Any:
    """Make the callback that the devices of an engine report errors to."""

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
    """A block that raises `translate(report)` for an error that the library reports in it.

    `lost` holds the reason why the device is gone; it is empty as long as the device works.
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
    """Raise the error that a signal handler raised in a callback, if any."""
    if reported.raised:
        raise reported.raised.pop()


def lost(reason: str) -> DeviceLost:
    """Return the error for a device that is gone."""
    return DeviceLost(f"the GPU device is lost ({reason}); load the program again")


def until(api: WebGPU, done: Callable[[object], object]) -> None:
    """Poll until `done` returns true for the result of a poll; do not pause for the first `api.spin` seconds.

    A blocking poll would delay signals, and keep other threads from submitting.
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


class NativeRequest:
    """A callback for the end of an asynchronous call of a library. It can be used again after it was answered."""

    __slots__ = ("_called", "_success", "answer", "info")

    def __init__(self, api: WebGPU, kind: str) -> None:
        self.answer: list[int] = []
        self._success = api.lib.WGPUMapAsyncStatus_Success
        # list.append runs no Python code. It takes the first argument, the status, and ignores the others, as a C
        # function may if its caller cleans up.
        self._called = c_callback(api.ffi.typeof("void (*)(uint32_t)"), self.answer.append, None, None)
        self.info = api.ffi.new(f"{kind}Info *")
        self.info.mode = api.lib.WGPUCallbackMode_AllowProcessEvents
        self.info.callback = api.ffi.cast(kind, self._called)

    def expect(self) -> None:
        """Keep this request alive until it is answered."""
        self.answer.clear()
        expect(self, self.answer)

    def wait(self, api: WebGPU) -> None:
        until(api, lambda _: self.answer)

    @property
    def succeeded(self) -> bool:
        """Return whether the buffer is mapped."""
        return self.answer[0] == self._success  # type: ignore[no-any-return]
