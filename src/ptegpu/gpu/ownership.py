"""Objects of a C library, each with an owner, and callbacks that live until the library has called them.

A signal handler may raise between any two steps of Python code. So every object is owned from the call that makes it
on, and no finalizer and no callback that a wait depends on runs Python code (cffi would print and forget what is raised
there), unless it does its work a second time then (`faults.callback`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from _cffi_backend import FFI, gcp  # type: ignore[import-untyped]

Handle = Any  # a C pointer to an object of the library

_unanswered: dict[int, tuple[Any, Sized, int]] = {}  # callbacks to come: what is called, the answers, their number


def owned(release: Any, create: Any, *arguments: Any) -> Handle:
    """Return what the C function `create` makes, released with its last reference; NULL if it makes nothing.

    One step of Python code makes and owns it, so that no signal handler can come between the two.
    """
    made = filter(None, map(create, *zip(arguments)))
    return next(map(gcp, made, (release,)), FFI.NULL)


def disown(handle: Handle) -> None:
    """Leak an object on purpose."""
    gcp(handle, None)


def disown_all(objects: Iterable[object]) -> None:
    """Leak the library handles among `objects` on purpose."""
    kinds, typeof = type(gcp(FFI().new("int *"), id)), FFI().typeof
    for handle in objects:
        if type(handle) is kinds and "WGPU" in typeof(handle).cname:
            disown(handle)


def expect(called: Any, answers: Sized, count: int = 1) -> None:
    """Keep a callback until it has given `count` answers; whoever waits for it may be interrupted."""
    settle()
    _unanswered[id(answers)] = called, answers, count


def settle() -> None:
    """Forget the callbacks that have given all answers."""
    for key in [key for key, (_, answers, count) in [*_unanswered.items()] if len(answers) == count]:
        _unanswered.pop(key, None)
