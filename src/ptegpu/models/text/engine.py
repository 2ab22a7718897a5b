"""The text engine: runs requests on a runner, token by token, and sends each what it gave.

Requests get their tokens in one of two ways. Those in the queue belong to the scheduler, and a thread of the engine
plans their runs. An attached one is computed by the thread that iterates over its handle, without a queue; only the
runner for one sequence offers that. The GPU always has the next run before the host knows the results of the last
one, so it does not wait for text, requests and plans.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, NoReturn, Protocol

from ...errors import Closed, DeviceLost, ExecutionError
from ...gpu import threads
from .handle import Handle
from .schedule import Event, PlannedRun, Scheduler
from .speculation import Verifier

RECENT = 256  # runs that the rate is measured over

Results = Callable[[], tuple[list[int], list[float]]]  # waits; tokens and log-probabilities of the sampled rows


class Runner(Verifier, Protocol):
    """Runs what a scheduler plans."""

    scheduler: Scheduler
    ahead: int  # further runs that may start before the results of the oldest are known

    def start(self, run: PlannedRun) -> Results: ...

    def prepare(self) -> None:
        """Compile whatever any run may need."""

    def close(self) -> None: ...


class Stats(NamedTuple):
    """The state of an engine."""

    queue: int
    running: int
    batch: int  # rows of the latest run
    tokens_per_second: float
    pages_used: int
    pages_total: int
    error: str = ""  # why it can run nothing more
    workers: int = 1  # processes that it consists of
    down: int = 0  # of these, processes that are being restarted
    restarts: int = 0  # since the beginning
    proposed: int = 0  # tokens of speculative decoding, since the beginning
    accepted: int = 0


class TextEngine:
    """Requests on one runner, which the engine closes. Methods may be called from any thread."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self._scheduler = runner, runner.scheduler
        self._wake = threads.Wake()  # and the lock of the scheduler
        self._thread: threads.ThreadJob[None] | None = None  # from the first request in the queue on
        self._closing = False
        self._error: Exception | None = None  # after which nothing runs
        self._started: deque[tuple[PlannedRun, Results, float]] = deque()  # and when
        self._collected = 0.0  # when the latest results came
        self._rows = 0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], RECENT)

    def enqueue(self, handle: Handle) -> Handle:
        """Queue a request; QueueFull if too many wait already."""
        with self._wake:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._closing:
                raise Closed("this engine was closed")
            if handle.request.max_tokens:
                handle.request.caller = handle
                self._scheduler.add(handle.request)
                self._thread = self._thread or threads.start_thread(self._serve)
                self._wake.notify()
            else:
                handle.accept(None, 0.0, "length")
        return handle

    def attach(self, handle: Handle) -> Handle:
        """Compute a request in the thread that iterates over its handle. Requests may take turns, token by token."""
        handle.advance = self._advance
        if not handle.request.max_tokens:
            handle.accept(None, 0.0, "length")
        return handle

    def stats(self) -> Stats:
        """Return the state of the engine."""
        with self._wake:
            pages, error = self._scheduler.pages, self._error
            seconds = time.monotonic() - self._recent[0][0]
            rate = sum(count for _, count in list(self._recent)[1:]) / seconds if seconds else 0.0
            waiting, running = len(self._scheduler.waiting), len(self._scheduler.running)
            return Stats(waiting, running, self._rows, rate, pages.used, pages.count, str(error) if error else "")

    def prepare(self) -> None:
        """Compile whatever any run may need; otherwise that happens when it is first needed."""
        self.runner.prepare()

    def close(self) -> None:
        """End all requests as cancelled and free the GPU memory."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is None:
            self.runner.close()
        elif threading.get_ident() != self._thread.ident:
            self._thread.wait()

    def _advance(self, handle: Handle) -> None:
        """Compute the next token of an attached request."""
        request = handle.request
        handle.since = time.perf_counter()
        token, logprob = self.runner.next_token(request)  # type: ignore[attr-defined]
        if request.cancelled:
            handle.accept(None, 0.0, "cancelled")
        else:
            handle.accept(*request.add(token, logprob))

    def _serve(self) -> None:
        """Run the requests in the queue until the engine is closed."""
        try:
            while True:
                with self._wake:
                    while not (self._started or self._closing or self._scheduler.busy):
                        self._wake.wait()
                    if self._closing:
                        break
                self._step()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else ExecutionError(f"{error!r}")
            raise
        finally:
            self._discard()
            self._closing = True
            self._end_all(self._error)
            self.runner.close()

    def _step(self) -> None:
        """Plan and start a run, and collect the oldest one if enough have started."""
        with self._wake:
            events = self._scheduler.expire(time.monotonic())
            run = self._scheduler.plan()
            if run or not self._started:
                self._rows = len(run.rows) if run else 0
        self._send(events)
        if run:
            for request in run.requests:
                request.caller.since = request.caller.since or time.perf_counter()
            try:
                run.propose()
                results = self.runner.start(run)
            except Exception as error:
                results = partial(_throw, error)  # after the results of earlier runs
            self._started.append((run, results, time.perf_counter()))
        if self._started and (not run or len(self._started) > self.runner.ahead):
            self._collect(*self._started.popleft())

    def _collect(self, run: PlannedRun, results: Results, started: float) -> None:
        """Wait for a run and send its results."""
        try:
            tokens, logprobs = results()
        except Exception as error:
            self._discard()
            if isinstance(error, DeviceLost | Closed):
                self._error = error
            self._end_all(error, waiting=self._error is not None)  # what the pages hold is unknown now
            return
        before, self._collected = self._collected, time.perf_counter()
        with self._wake:
            self._scheduler.costs.add(len(run.rows), self._collected - max(started, before))
            events = self._scheduler.done(run, tokens, logprobs)
            self._recent.append((time.monotonic(), len(events)))
        self._send(events)

    def _send(self, events: list[Event]) -> None:
        for request, token, logprob, reason in events:
            handle: Handle = request.caller
            handle.accept(token, logprob, reason)
            if handle.generation.finish_reason is not None and request.state != "ended":  # by a stop string
                with self._wake:
                    self._scheduler.end(request)

    def _end_all(self, error: Exception | None, waiting: bool = True) -> None:
        """End all running requests, and those that are `waiting`, with an error or as cancelled."""
        with self._wake:
            requests = [*self._scheduler.running, *(self._scheduler.waiting if waiting else ())]
            for request in requests:
                self._scheduler.end(request)
            self._scheduler.pages.forget()
        for request in requests:
            if error is None:
                request.caller.accept(None, 0.0, "cancelled")
            else:
                request.caller.send(error)

    def _discard(self) -> None:
        """Wait for started runs whose results are not used."""
        while self._started:
            with suppress(Exception):
                self._started.popleft()[1]()


def _throw(error: Exception) -> NoReturn:
    raise error
