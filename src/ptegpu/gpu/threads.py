"""Our own threads, which live until the process ends, and jobs for them.

Python runs signal handlers in the main thread. Its tools for threads (futures, conditions, events) hold a lock for ever
if a handler raises in them. So a wait in this module uses only locks and queues that are written in C. Work in one of
our threads, including its callbacks and finalizers, is never interrupted.

A forked process has none of these threads, nor those of the drivers. If the parent had started any, waiting for them or
taking a `Lock` raises in the child.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from _thread import RLock, allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from threading import local
from typing import Any, Generic, NoReturn, TypeVar

from ..errors import Closed, DeviceLost
from ..limits import tick
from .native import disown_all

T = TypeVar("T")
R = TypeVar("R")


class _Current(local):
    """The pool of the current thread."""

    pool: Pool | None = None


_TURN = 0.1  # seconds of one wait, after which the main thread sees signals that another thread got
_running: dict[int, ThreadJob[Any]] = {}  # by id
_current = _Current()
_state = {"leaving": False, "forked": False}


class Lock(RLock):  # type: ignore[misc]
    """The only kind of lock that may be held while a GPU is used."""

    __slots__ = ()


class Wake(Lock):  # type: ignore[misc]
    """A lock that can also wake the single thread waiting for it, like a condition."""

    __slots__ = ("_bell",)

    def __init__(self) -> None:
        self._bell = allocate_lock()
        self._bell.acquire()

    def notify(self) -> None:
        """Wake the waiting thread; the caller holds the lock."""
        if self._bell.locked():
            self._bell.release()

    def wait(self) -> None:
        """Wait to be woken; the caller holds the lock once."""
        self.release()
        self._bell.acquire()
        self.acquire()


class ThreadJob(Generic[R]):
    """Work for a thread. `result` waits for it; if that is interrupted, the work continues."""

    __slots__ = ("_begun", "_ended", "_error", "_value", "_work", "done", "dropped", "ident")

    def __init__(self, work: Callable[[], R]) -> None:
        self.done = False
        self.dropped = False  # its result is not needed any more
        self.ident = 0  # of its thread
        self._work: Callable[[], R] | None = work
        self._value: R | None = None
        self._error: BaseException | None = None
        self._begun, self._ended = allocate_lock(), allocate_lock()  # acquired when it begins; released when it ends
        self._ended.acquire()

    def run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            assert self._work is not None
            self.ident = get_ident()
            if _state["leaving"]:
                raise Closed("the process ends")
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._work = None
            self.done = True
            self._ended.release()

    def cancel(self) -> bool:
        """Prevent the work from beginning; return False if it has begun."""
        return self._begun.acquire(blocking=False)

    def wait(self) -> None:
        while not self.done:
            tick()
            self._ended.acquire(timeout=_TURN)

    def result(self) -> R:
        self.wait()
        if self._error is None:
            return self._value  # type: ignore[return-value]
        try:
            raise self._error
        finally:
            del self  # the error's traceback would hold it


class Pool:
    """Threads that share a queue of jobs."""

    def __init__(self, threads: int) -> None:
        self._threads, self.started = threads, 0
        self._jobs: SimpleQueue[ThreadJob[Any]] = SimpleQueue()

    def begin(self, work: Callable[[], R]) -> ThreadJob[R]:
        job = ThreadJob(work)
        self.put(job)
        return job

    def put(self, job: ThreadJob[Any]) -> None:
        if _state["forked"]:
            raise _forked()
        if self.started < self._threads:
            start_new_thread(self._serve, ())
            self.started += 1  # if that is interrupted, there will be one thread more
        self._jobs.put(job)

    def do(self, work: Callable[[], R]) -> R:
        """Do work in the pool and wait for it; a thread of the pool does it itself."""
        return work() if _current.pool is self and not _state["forked"] else self.begin(work).result()

    def _serve(self) -> None:
        _current.pool = self
        while True:
            job = self._jobs.get()
            _running[id(job)] = job
            job.run()
            del _running[id(job)], job

    def in_turn(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results in the order of the items. After a failure, or when the caller stops, no other begins."""
        jobs = [self.begin(lambda item=item: work(item)) for item in items]  # type: ignore[misc]
        try:
            for job in jobs:
                yield job.result()
        finally:
            for job in [job for job in jobs if not job.cancel()]:
                job.wait()


@cache
def pool(name: str, threads: int = 1) -> Pool:
    return Pool(threads)


def start_thread(work: Callable[[], R]) -> ThreadJob[R]:
    """Begin work in a thread of its own, which the end of the process does not wait for."""
    job = ThreadJob(work)
    start_new_thread(job.run, ())
    return job


def opening() -> Pool:
    """Return the pool whose single thread looks for adapters and opens devices."""
    return pool("opening")


@atexit.register
def _leave() -> None:
    """Wait for running jobs, since a library must not be unloaded while a thread uses it.

    If this is interrupted, end the process at once without unloading anything.
    """
    _state["leaving"] = True
    try:
        for job in [*_running.values()]:
            job.wait()
    except KeyboardInterrupt:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(130)


def _forked() -> DeviceLost:
    return DeviceLost(
        "this process was forked from one that had started the GPU, which cannot be used in both; "
        'start it with "spawn", or before the first load'
    )


def _refuse(_: Lock) -> NoReturn:
    raise _forked()


def _in_a_child() -> None:
    _running.clear()
    if opening().started:
        _state["forked"] = True
        Lock.__enter__ = _refuse  # type: ignore[assignment, method-assign]
        disown_all(gc.get_objects())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)
