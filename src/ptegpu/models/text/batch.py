"""Many requests on one model: a thread of its own runs what the scheduler plans, and tells each request what it got.

    with BatchEngine("model.pte") as engine:
        handles = [engine.submit(engine.encode(text), {"max_tokens": 50}) for text in texts]
        for piece in handles[0]:
            print(piece.text, end="")
        handles[1].wait().text

`submit`, `cancel` and `stats` may be called from any thread; `stream` is for an event loop. The GPU always has the next
run before the host knows what the last one gave, so it does not wait for text, requests and plans.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from ...errors import Closed, DeviceLost, ExecutionError, InvalidInput, UnsupportedProgram
from ...gpu import threads
from ..door import Loading, Openable, Source, loading
from ..kinds import LANGUAGE
from .generation import Generation
from .handle import Finished, Handle, Piece, Told
from .prompts import MAX_TOKENS, Options, Prompt, Prompts, check_max_tokens
from .runners import ManyRunner, OneRunner, Results, Runner
from .sampling import Sampling, Seen
from .schedule import Event, Request, Work
from .signature import read_signature

if TYPE_CHECKING:
    from ...runtime import Program

SEQUENCES = 64
QUEUE = 256
BESIDE = 128
RECENT = 256  # runs that the rate is measured over


class BatchOptions(Options, total=False):
    """How to generate, and when."""

    timeout: float  # seconds; what is not finished by then ends with "deadline"
    owner: str  # owners take turns: many requests of one do not keep others waiting


class Served(NamedTuple):
    """A model as clients see it."""

    name: str
    context: int  # tokens
    vocabulary: int
    has_chat: bool
    sequences: int = 1  # requests that run at once


class Stats(NamedTuple):
    """An engine as it is now."""

    queue: int
    running: int
    batch: int  # rows of the latest run
    tokens_per_second: float
    pages_used: int
    pages_total: int
    error: str = ""  # why it can run nothing more
    workers: int = 1  # processes that it consists of
    down: int = 0  # of these, those that are being started again
    restarts: int = 0  # since the beginning


class BatchEngine(Prompts):
    """A language model for many requests at once. Close it, or use it as a context manager.

    At most `sequences` requests run at once and `queue` wait (None: any number). `memory` is what caches take at most,
    in bytes; else they take what all sequences can need, or half of what weights leave free. A run has at most `rows`
    tokens, and at most `beside` of prompts when it has others, too: fewer make the time between tokens more even, and
    prompts slower. Other arguments are those of `LanguageModel`. A program that cannot be made one for many sequences
    is served one request at a time; `alone` says why. With `one_by_one=False` it is refused. `shares` is a program of
    the same file on a device: its weights serve this one, too.
    """

    def __init__(
        self,
        source: Openable,
        options: Loading = None,
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        sequences: int = SEQUENCES,
        queue: int | None = QUEUE,
        memory: int | None = None,
        rows: int | None = None,
        beside: int = BESIDE,
        one_by_one: bool = True,
        shares: Program | None = None,
        **more: Any,
    ) -> None:
        for name, value in (("sequences", sequences), ("queue", queue), ("rows", rows), ("beside", beside)):
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, not {value}")
        options = loading(options, more)
        limit = math.inf if queue is None else queue
        found = Source.of(source, options, LANGUAGE)
        super().__init__(found.path, read_signature(found.file, found.card), tokenizer)
        self.alone = ""
        self._runner: Runner
        try:
            self._runner = ManyRunner(
                found.program, self.signature, options, data=data, sequences=sequences, memory=memory, rows=rows,
                beside=beside, queue=limit, shares=shares,
            )  # fmt: skip
        except UnsupportedProgram as reason:
            if not one_by_one:
                raise
            from .model import LanguageModel

            self.alone = str(reason)
            warnings.warn(f"{reason}; requests are served one at a time", stacklevel=2)
            self._runner = OneRunner(LanguageModel(found, options, tokenizer, data=data, chunk=rows), limit)
        self._scheduler = self._runner.scheduler
        self.model = Served(
            self._path.stem if self._path else "model",
            self.signature.context,
            self.signature.vocabulary,
            self.has_tokenizer and self.tokenizer.has_chat,
            self._scheduler.sequences,
        )
        self._wake = threads.Wake()  # and the lock of what follows
        self._cancelled: list[Request] = []
        self._closing = False
        self._error: Exception | None = None  # after which nothing runs
        self._rows = 0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], RECENT)
        self._served = threads.alone(self._serve)

    def submit(
        self, prompt: Prompt, options: BatchOptions | None = None, tell: Callable[[Told], object] | None = None
    ) -> Handle:
        """A request; QueueFull if too many wait already. `tell` gets its events, in the engine's thread, in place of
        who iterates over it."""
        given: dict[str, Any] = {**(options or {})}
        max_tokens = given.pop("max_tokens", MAX_TOKENS)
        check_max_tokens(max_tokens)
        ends, stop = self.ends(given.pop("stop_tokens", None)), given.pop("stop", ())
        deadline = time.monotonic() + given.pop("timeout", math.inf)
        owner = given.pop("owner", "")
        sampling = Sampling(**given)
        tokens = self.encode(prompt)
        made = Generation(tokens, cast(int, sampling.seed))
        request = Request(tokens, max_tokens, ends, deadline, owner, waits=sampling.penalises)
        seen = Seen(self.signature.vocabulary, sampling.penalises)
        writer = self.writer(made, stop)
        handle = Handle(request, made, writer, sampling, seen, lambda: self._cancel(request), tell)
        request.caller = handle
        with self._wake:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._closing:
                raise Closed("this engine was closed")
            if max_tokens == 0:
                handle.finish("length")
            else:
                self._scheduler.add(request)
                self._wake.notify()
        return handle

    async def stream(
        self, prompt: Prompt, options: BatchOptions | None = None
    ) -> AsyncGenerator[Piece | Finished, None]:
        """Pieces, then Finished. Leaving the loop, or cancelling its task, cancels the request."""
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Told]()
        handle = self.submit(prompt, options, lambda event: loop.call_soon_threadsafe(told.put_nowait, event))
        try:
            while True:
                event = await told.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finished):
                    break
        finally:
            handle.cancel()

    def stats(self) -> Stats:
        """How busy it is."""
        with self._wake:
            pages, error = self._scheduler.pages, self._error
            seconds = time.monotonic() - self._recent[0][0]
            rate = sum(count for _, count in list(self._recent)[1:]) / seconds if seconds else 0.0
            waiting, running = len(self._scheduler.waiting), len(self._scheduler.running)
            return Stats(waiting, running, self._rows, rate, pages.used, pages.count, str(error) if error else "")

    def prepare(self) -> None:
        """Compile whatever any run may need; otherwise that happens when it is first needed."""
        self._runner.prepare()

    def close(self) -> None:
        """End all requests as cancelled and give the GPU memory back."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.get_ident() != self._served.ident:
            self._served.wait()

    def __enter__(self) -> BatchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cancel(self, request: Request) -> None:
        with self._wake:
            if request.state != "ended":
                self._cancelled.append(request)
                self._wake.notify()

    def _serve(self) -> None:
        """All there is to do, until it is closed."""
        started: deque[tuple[Work, Results]] = deque()
        try:
            while True:
                with self._wake:
                    while not (started or self._cancelled or self._closing or self._scheduler.busy):
                        self._wake.wait()
                    if self._closing:
                        break
                    gone = self._ended()
                    work = self._scheduler.plan()
                    if work or not started:
                        self._rows = len(work.rows) if work else 0
                self._tell(gone)
                if work:
                    started.append((work, self._start(work)))
                if started and (not work or len(started) > self._runner.ahead):
                    self._finish(*started.popleft(), started)
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else ExecutionError(f"{error!r}")
            raise
        finally:
            self._leave(started)

    def _finish(self, work: Work, results: Results, later: deque[tuple[Work, Results]]) -> None:
        """Wait for a run, and tell what it gave."""
        try:
            found = results()
        except Exception as error:
            _forget(later)
            self._fail(error)
            return
        with self._wake:
            told = self._scheduler.done(work, *found)
            self._recent.append((time.monotonic(), len(told)))
        self._tell(told)

    def _start(self, work: Work) -> Results:
        for request in work.requests:
            request.caller.began()
        try:
            return self._runner.start(work)
        except Exception as error:
            failed = error

        def results() -> NoReturn:
            raise failed

        return results

    def _ended(self) -> list[Event]:
        """What was cancelled, and what is late."""
        gone = [r for r in dict.fromkeys(self._cancelled) if r.state != "ended"]
        self._cancelled.clear()
        for request in gone:
            self._scheduler.end(request)
        late = self._scheduler.expire(time.monotonic())
        return [*(Event(request, reason="cancelled") for request in gone), *late]

    def _tell(self, events: list[Event]) -> None:
        for request, token, logprob, reason in events:
            handle: Handle = request.caller
            if handle.generation.finish_reason is not None:
                continue  # a stop string was complete before
            if token is not None and handle.push(token, logprob):
                reason = "stop"
                with self._wake:
                    self._scheduler.end(request)
            if reason == "failed":
                position = len(request.tokens) - 1
                handle.tell(ExecutionError(f"the model's logits at position {position} are not finite numbers"))
            elif reason is not None:
                handle.finish(reason)

    def _fail(self, error: Exception) -> None:
        """A run went wrong: what the pages hold is not known, so those that run end."""
        with self._wake:
            if isinstance(error, DeviceLost | Closed):
                self._error = error
            gone = [*self._scheduler.running, *(self._scheduler.waiting if self._error else ())]
            for request in gone:
                self._scheduler.end(request)
            self._scheduler.pages.forget()
        for request in gone:
            request.caller.tell(error)

    def _leave(self, started: deque[tuple[Work, Results]]) -> None:
        """Nothing runs any more."""
        _forget(started)
        with self._wake:
            self._closing = True
            left = [*self._scheduler.running, *self._scheduler.waiting]
            for request in left:
                self._scheduler.end(request)
        error = self._error
        if error is None:
            self._tell([Event(request, reason="cancelled") for request in left])
        else:
            for request in left:
                request.caller.tell(error)
        self._runner.close()


def _forget(started: deque[tuple[Work, Results]]) -> None:
    """Wait for runs whose results nobody wants."""
    while started:
        with suppress(Exception):
            started.popleft()[1]()
