"""Threads of ours, which stay until the process ends, and work that is done in them.

Python runs signal handlers in the main thread, and its own tools for threads (futures, conditions, events) keep a lock
for ever where a handler raises in them. Here whoever waits touches locks and queues only, which are written in C. What
is done in a thread of ours, with the callbacks and finalizers in it, is never interrupted.

A process that is forked has none of these threads, nor those of the drivers. Once there were any, all that waits for
them, or takes a `Lock`, raises there.
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
from . import ownership

T = TypeVar("T")
R = TypeVar("R")


class _Here(local):
    """The pool whose thread this is."""

    pool: Pool | None = None


_TURN = 0.1  # seconds of one wait: where another thread gets the signal, the main thread hears of it after that
_running: dict[int, Job[Any]] = {}  # by id
_here = _Here()
_state = {"leaving": False, "forked": False}


class Lock(RLock):  # type: ignore[misc]
    """The only kind of lock that is held while a GPU is used."""

    __slots__ = ()


class Wake(Lock):  # type: ignore[misc]
    """A lock with which others wake the one thread of ours that waits, as a condition does."""

    __slots__ = ("_bell",)

    def __init__(self) -> None:
        self._bell = allocate_lock()
        self._bell.acquire()

    def notify(self) -> None:
        """Wake the thread that waits; the caller holds the lock."""
        if self._bell.locked():
            self._bell.release()

    def wait(self) -> None:
        """Wait to be woken; the caller holds the lock once."""
        self.release()
        self._bell.acquire()
        self.acquire()


class Job(Generic[R]):
    """Work for a thread. `result` waits for it; if that is interrupted, the work goes on."""

    __slots__ = ("_begun", "_ended", "_error", "_made", "_work", "done", "dropped", "ident")

    def __init__(self, work: Callable[[], R]) -> None:
        self.done = False
        self.dropped = False  # whether nobody wants to know any more
        self.ident = 0  # of the thread that does it
        self._work: Callable[[], R] | None = work
        self._made: R | None = None
        self._error: BaseException | None = None
        self._begun, self._ended = allocate_lock(), allocate_lock()  # taken when it is begun; free when it has ended
        self._ended.acquire()

    def run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            assert self._work is not None
            self.ident = get_ident()
            if _state["leaving"]:
                raise Closed("the process ends")
            self._made = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._work = None
            self.done = True
            self._ended.release()

    def cancel(self) -> bool:
        """Keep work from beginning; return False if it has begun."""
        return self._begun.acquire(blocking=False)

    def wait(self) -> None:
        while not self.done:
            tick()
            self._ended.acquire(timeout=_TURN)

    def result(self) -> R:
        self.wait()
        if self._error is None:
            return self._made  # type: ignore[return-value]
        try:
            raise self._error
        finally:
            del self  # which the error's traceback would hold


class Pool:
    """Threads that take turns with the jobs they are given."""

    def __init__(self, threads: int) -> None:
        self._threads, self._started = threads, 0
        self._jobs: SimpleQueue[Job[Any]] = SimpleQueue()

    @property
    def started(self) -> bool:
        return self._started > 0

    def begin(self, work: Callable[[], R]) -> Job[R]:
        job = Job(work)
        self.put(job)
        return job

    def put(self, job: Job[Any]) -> None:
        if _state["forked"]:
            raise _forked()
        if self._started < self._threads:
            start_new_thread(self._serve, ())
            self._started += 1  # if that is interrupted, there will be one more than wanted
        self._jobs.put(job)

    def do(self, work: Callable[[], R]) -> R:
        """Begin work and wait for it. A thread of the pool does it itself."""
        return work() if _here.pool is self and not _state["forked"] else self.begin(work).result()

    def _serve(self) -> None:
        _here.pool = self
        while True:
            job = self._jobs.get()
            _running[id(job)] = job
            job.run()
            del _running[id(job)], job

    def in_turn(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results, in the order of the items. Once one fails, or nobody wants more, no other begins."""
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


def alone(work: Callable[[], R]) -> Job[R]:
    """Begin work in a thread of its own. The process ends without waiting for that."""
    job = Job(work)
    start_new_thread(job.run, ())
    return job


def opening() -> Pool:
    """Return the one thread in which adapters are looked for and devices opened."""
    return pool("opening")


@atexit.register
def _leave() -> None:
    """Let jobs end: a library may not be unloaded under a thread. If this is interrupted again, the process ends
    at once, and nothing is unloaded."""
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
        ownership.disown_all(gc.get_objects())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)
