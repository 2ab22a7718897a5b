"""What every call of a C library goes through, whichever library it is: errors become ours, objects have an owner.

A signal handler may raise between any two steps of Python code. So every object of a library is owned from the call
that makes it on (`owned`), and no finalizer and no callback that a wait depends on runs Python code (cffi would print
and forget what is raised there), unless it does its work a second time then (`callback`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence, Sized
from types import TracebackType
from typing import Any, NamedTuple

from _cffi_backend import FFI, gcp  # type: ignore[import-untyped]

from ..errors import DeviceLost

Handle = Any  # a C pointer to an object of the library


class Words(NamedTuple):
    """What a library says about an error."""

    full: bool  # there is no memory left
    text: str


class _Said(threading.local):
    """What callbacks heard on this thread: errors of a library, and what signal handlers raised meanwhile."""

    def __init__(self) -> None:
        self.errors: list[Words] = []
        self.raised: list[BaseException] = []


said = _Said()
_unanswered: dict[int, tuple[Any, Sized, int]] = {}  # callbacks that a library may still call, the answers, how many


def callback(ffi: Any, signature: str) -> Callable[[Callable[..., None]], Any]:
    """A callback that does its work although a signal handler raises in it; `checked` raises that later."""

    def decorate(function: Callable[..., None]) -> Any:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]

        def again(_: object, error: BaseException, trace: TracebackType) -> None:
            said.raised.append(error)
            function(*(trace.tb_frame.f_locals[name] for name in names))

        return ffi.callback(signature, function, onerror=again)

    return decorate


class checked:
    """A block in which errors of a library become ours, as `translate` makes them of its words.

    `lost` says why the device is gone; it stays empty as long as it is there.
    """

    __slots__ = ("_lost", "_translate")

    def __init__(self, translate: Callable[[Words], Exception], lost: Sequence[str] = ()) -> None:
        self._translate, self._lost = translate, lost

    def __enter__(self) -> None:
        said.errors.clear()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        raise_delayed()
        if error is None and self._lost:
            raise lost(self._lost[0])
        if error is None and said.errors:
            raise self._translate(said.errors[-1])


def raise_delayed() -> None:
    """What a signal handler raised in a callback."""
    if said.raised:
        raise said.raised.pop()


def lost(words: str) -> DeviceLost:
    return DeviceLost(f"the GPU device is lost ({words}); load the program again")


def owned(release: Any, create: Any, *arguments: Any) -> Handle:
    """What the C function `create` makes, released with its last reference; NULL if it makes nothing.

    One step of Python code makes and owns it, so that no signal handler can come between the two.
    """
    made = filter(None, map(create, *zip(arguments)))
    return next(map(gcp, made, (release,)), FFI.NULL)


def disown(handle: Handle) -> None:
    """It is not released any more."""
    gcp(handle, None)


def disown_all(objects: Iterable[object]) -> None:
    """Of these objects, those of a library are not released any more."""
    kinds, typeof = type(gcp(FFI().new("int *"), id)), FFI().typeof
    for handle in objects:
        if type(handle) is kinds and "WGPU" in typeof(handle).cname:
            disown(handle)


def expect(called: Any, answers: Sized, count: int = 1) -> None:
    """Keeps a callback until it was called so often; whoever waits for it may be interrupted."""
    settle()
    _unanswered[id(answers)] = called, answers, count


def settle() -> None:
    """Forgets the callbacks that were called often enough, and their answers."""
    for key in [key for key, (_, found, wanted) in [*_unanswered.items()] if len(found) == wanted]:
        _unanswered.pop(key, None)
