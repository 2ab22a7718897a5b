"""Many requests on one model: a thread of its own runs what the scheduler plans, and tells each request what it got.

    with BatchEngine("model.pte") as engine:
        handles = [engine.submit(engine.encode(text), {"max_tokens": 50}) for text in texts]
        for piece in handles[0]:
            print(piece.text, end="")
        handles[1].wait().text

`submit`, `cancel` and `stats` may be called from any thread; `stream` is for an event loop. Text is made of the tokens
of a run while the GPU is busy with the next.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from ..errors import Closed, DeviceLost, ExecutionError, InvalidInput, UnsupportedProgram
from ..format import read_program
from ..gpu.pipelines import Progress, silent
from ..plan.bundle import Bundle
from ..plan.read import is_bundle
from ..plan.target import Cache, Precision
from .generation import FinishReason, Generation
from .prompts import MAX_TOKENS, Options, Prompt, Prompts, Writer, check_max_tokens
from .runners import ManyRunner, OneRunner, Results, Runner
from .sampling import Sampling, Seen
from .schedule import Event, Request, Work
from .signature import read_signature

if TYPE_CHECKING:
    from ..gpu import Engine

SEQUENCES = 64
QUEUE = 256
BESIDE = 128
RECENT = 256  # runs that the rate is measured over


class BatchOptions(Options, total=False):
    """How to generate, and when."""

    timeout: float  # seconds; what is not finished by then ends with "deadline"
    owner: str  # owners take turns: many requests of one do not keep others waiting


class Piece(NamedTuple):
    """What a token adds to the text: nothing yet, where a character or a stop string may still be completed.

    Text that was held back to the end belongs to no token.
    """

    text: str
    token: int | None = None
    logprob: float = 0.0


class Finished(NamedTuple):
    """The last event of a request, with what was counted."""

    reason: FinishReason
    prompt_tokens: int
    tokens: int
    cached_tokens: int = 0  # of the prompt, found in pages that others left


class Facts(NamedTuple):
    """About a model, as it was loaded."""

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


Told = Piece | Finished | Exception


class Handle(Iterator[Piece]):
    """A request on its way: its pieces as they come; `generation` is what came so far."""

    def __init__(
        self, request: Request, generation: Generation, writer: Writer, sampling: Sampling, seen: Seen
    ) -> None:
        self.request, self.generation, self.sampling, self.seen = request, generation, sampling, seen
        self._writer = writer
        self._queue: SimpleQueue[Told] = SimpleQueue()
        self._over = False
        self.put: Callable[[Told], None] = self._queue.put
        self.stop: Callable[[], None] = lambda: None
        self._since = 0.0  # when it began, or when its first token came

    def cancel(self) -> None:
        """End it before the next run; from any thread."""
        self.stop()

    def wait(self) -> Generation:
        """All of it."""
        for _ in self:
            pass
        return self.generation

    def __next__(self) -> Piece:
        if self._over:
            raise StopIteration
        told = self._queue.get()
        if isinstance(told, Piece):
            return told
        self._over = True
        if isinstance(told, Exception):
            raise told
        raise StopIteration

    def began(self) -> None:
        """Its first tokens are about to run."""
        self._since = self._since or time.perf_counter()

    def push(self, token: int, logprob: float) -> bool:
        """A token; whether a stop string is complete with it."""
        now, timings = time.perf_counter(), self.generation.timings
        if self.generation.tokens:
            timings.decode_tokens, timings.decode_s = len(self.generation.tokens), now - self._since
        else:
            reused = timings.reused_tokens = self.request.reused
            timings.prefill_tokens, timings.prefill_s = len(self.request.prompt) - reused, now - self._since
            self._since = now
        self.put(Piece(self._writer.push(token, logprob), token, logprob))
        return self._writer.stopped

    def finish(self, reason: FinishReason) -> None:
        rest = self._writer.finish()
        if rest:
            self.put(Piece(rest))
        made = self.generation
        made.finish_reason = reason
        self.put(Finished(reason, len(made.prompt_tokens), len(made.tokens), made.timings.reused_tokens))


class BatchEngine(Prompts):
    """A language model for many requests at once. Close it, or use it as a context manager.

    At most `sequences` requests run at once and `queue` wait (None: any number). `memory` is what caches take at most,
    in bytes; else they take what all sequences can need, or half of what is free. A run has at most `rows` tokens, and
    at most `beside` of prompts when it has others, too: fewer make the time between tokens more even, and prompts
    slower. Other arguments are those of `LanguageModel`. A program that cannot be made one for many sequences is served
    one request at a time; `alone` says why. With `one_by_one=False` it is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | bytes,
        device: str | int = "auto",
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        sequences: int = SEQUENCES,
        queue: int | None = QUEUE,
        memory: int | None = None,
        rows: int | None = None,
        beside: int = BESIDE,
        one_by_one: bool = True,
        engine: Engine = "auto",
        precision: Precision = "auto",
        cache: Cache = "f32",
        progress: Progress = silent,
    ) -> None:
        for name, value in (("sequences", sequences), ("queue", queue), ("rows", rows), ("beside", beside)):
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, not {value}")
        how: dict[str, Any] = {"engine": engine, "precision": precision, "cache": cache, "progress": progress}
        limit = math.inf if queue is None else queue
        saved = Bundle.load(path) if is_bundle(path) else None
        super().__init__(path, read_signature(saved.file if saved else read_program(path)), tokenizer)
        self.alone = ""
        self._runner: Runner
        try:
            if saved is not None:
                raise UnsupportedProgram("a bundle has no plans for several sequences at once")
            self._runner = ManyRunner(
                path, self.signature, device=device, data=data, sequences=sequences, memory=memory, rows=rows,
                beside=beside, queue=limit, how=how,
            )  # fmt: skip
        except UnsupportedProgram as reason:
            if not one_by_one:
                raise
            from .model import LanguageModel

            self.alone = str(reason)
            warnings.warn(f"{reason}; requests are served one at a time", stacklevel=2)
            self._runner = OneRunner(LanguageModel(path, device, tokenizer, data=data, chunk=rows, **how), limit)
        self._scheduler = self._runner.scheduler
        self.model = Facts(
            self._path.stem if self._path else "model",
            self.signature.context,
            self.signature.vocabulary,
            self.has_tokenizer and self.tokenizer.has_chat,
            sequences=1 if self.alone else min(sequences, self._scheduler.rows),
        )
        self._wake = threading.Condition()  # and the lock of what follows
        self._cancelled: list[Request] = []
        self._closing = False
        self._error: Exception | None = None  # after which nothing runs
        self._rows = 0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], RECENT)
        self._thread = threading.Thread(target=self._serve, name="ptegpu batch engine", daemon=True)
        self._thread.start()

    def submit(self, prompt: Prompt, options: BatchOptions | None = None) -> Handle:
        """A request; QueueFull if too many wait already."""
        return self._submit(prompt, options)

    async def stream(
        self, prompt: Prompt, options: BatchOptions | None = None
    ) -> AsyncGenerator[Piece | Finished, None]:
        """Pieces, then Finished. Leaving the loop, or cancelling its task, cancels the request."""
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Told]()
        handle = self._submit(prompt, options, lambda event: loop.call_soon_threadsafe(told.put_nowait, event))
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
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> BatchEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(
        self, prompt: Prompt, options: BatchOptions | None, put: Callable[[Told], object] | None = None
    ) -> Handle:
        given: dict[str, Any] = {**(options or {})}
        max_tokens = given.pop("max_tokens", MAX_TOKENS)
        check_max_tokens(max_tokens)
        ends, stop = self.ends(given.pop("stop_tokens", None)), given.pop("stop", ())
        deadline = time.monotonic() + given.pop("timeout", math.inf)
        owner = given.pop("owner", "")
        sampling = Sampling(**given)
        tokens = self.encode(prompt)
        made = Generation(tokens, cast(int, sampling.seed))
        request = Request(tokens, max_tokens, ends, deadline, owner)
        seen = Seen(self.signature.vocabulary, sampling.penalises)
        handle = request.caller = Handle(request, made, self.writer(made, stop), sampling, seen)
        handle.stop = lambda: self._cancel(request)
        if put is not None:
            handle.put = lambda event: self._put(put, request, event)
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

    def _put(self, put: Callable[[Told], object], request: Request, event: Told) -> None:
        try:
            put(event)
        except RuntimeError:  # the event loop is closed
            self._cancel(request)

    def _cancel(self, request: Request) -> None:
        with self._wake:
            if request.state != "ended":
                self._cancelled.append(request)
                self._wake.notify()

    def _serve(self) -> None:
        """All there is to do, until it is closed."""
        told: list[Event] = []
        try:
            while True:
                with self._wake:
                    while not (told or self._cancelled or self._closing or self._scheduler.busy):
                        self._wake.wait()
                    if self._closing:
                        break
                    told += self._ended()
                    work = self._scheduler.plan()
                    self._rows = len(work.rows) if work else 0
                results = self._start(work) if work else None
                self._tell(told)
                told = []
                if work and results:
                    try:
                        found = results()
                    except Exception as error:
                        self._fail(error)
                        continue
                    with self._wake:
                        told = self._scheduler.done(work, *found)
                        self._recent.append((time.monotonic(), len(told)))
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else ExecutionError(f"{error!r}")
            raise
        finally:
            self._leave(told)

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
                handle.put(ExecutionError(f"the model's logits at position {position} are not finite numbers"))
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
            request.caller.put(error)

    def _leave(self, told: list[Event]) -> None:
        """Nothing runs any more."""
        with self._wake:
            self._closing = True
            left = [*self._scheduler.running, *self._scheduler.waiting]
            for request in left:
                self._scheduler.end(request)
        error = self._error
        self._tell(told)
        if error is None:
            self._tell([Event(request, reason="cancelled") for request in left])
        else:
            for request in left:
                request.caller.put(error)
        self._runner.close()
