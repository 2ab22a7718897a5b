"""One model on several GPUs: a worker for each; a request goes to the one with the fewest requests.

When a worker ends, its requests fail with status 503, and it is restarted: after a second, then two, four, and so on,
up to a minute.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import multiprocessing
import sys
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DeviceLost, ExecutionError
from ..printing import shown
from ..progress import Progress, silent
from .engine import Event, Finished, Served, Stats
from .errors import ApiError
from .worker import SHUTDOWN, EngineCall, Failed, Make, MessagePipe, ProgressReport, Ready, Reply, work

if TYPE_CHECKING:
    import numpy as np

    from ..models.text.batch import BatchOptions

SPAWN = multiprocessing.get_context("spawn")  # a GPU does not survive a fork
FIRST, LONGEST = 1.0, 60.0  # seconds before a restart
STEADY = 60.0  # seconds after which a worker counts as healthy
END = 30.0  # seconds that a worker has to end
SUMMED = ("queue", "running", "batch", "tokens_per_second", "pages_used", "pages_total", "proposed", "accepted")
IDLE = Stats(0, 0, 0, 0.0, 0, 0)


class EventQueue(NamedTuple):
    """The events of a submission, for an event loop."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Any]


class Worker:
    """A process that is restarted when it ends. `name` is for messages."""

    def __init__(self, name: str, make: Make) -> None:
        self.name, self._make = name, make
        self.ready: Ready | None = None  # while it accepts requests
        self.error = ""  # why it does not
        self.restarts = 0
        self.stats = IDLE
        self._process: Any = None
        self._pipe: MessagePipe | None = None
        self._open: dict[int, Future[Any] | EventQueue] = {}
        self._numbers = itertools.count()
        self._closing = threading.Event()
        self._first: Future[Ready] = Future()
        self._progress: Progress = silent
        self._thread = threading.Thread(target=self._run, name=f"ptegpu worker {name}", daemon=True)

    def start(self, progress: Progress = silent) -> Ready:
        """Wait until the worker accepts requests; raise the error that prevents that."""
        self._progress = progress
        self._thread.start()
        return self._first.result()

    @property
    def load(self) -> int:
        """Requests and calls without an answer."""
        return len(self._open)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the engine and wait for its result."""
        result: Future[Any] = Future()
        self._send(result, name, arguments)
        return result.result()

    async def stream(self, prompt: Sequence[int], options: BatchOptions) -> AsyncGenerator[Event, None]:
        events = EventQueue(asyncio.get_running_loop(), asyncio.Queue())
        number = self._send(events, "submit", (list(prompt), options))
        try:
            while True:
                event = await events.queue.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finished):
                    break
        finally:
            self._open.pop(number, None)
            if pipe := self._pipe:
                pipe.send(EngineCall(number, "cancel"))

    def close(self) -> None:
        """End the process: at once while it starts, else after closing its engine."""
        self._closing.set()
        if self.ready and self._pipe:
            self._pipe.send(SHUTDOWN)
        elif self._process:
            self._process.kill()
        if self._thread.ident is not None:
            self._thread.join(END)
            if self._thread.is_alive():
                self._process.kill()
                self._thread.join()

    def _send(self, receiver: Future[Any] | EventQueue, name: str, arguments: tuple[Any, ...]) -> int:
        number = next(self._numbers)
        self._open[number] = receiver  # before the check: if the process ends after it, `_live` tells the receiver
        pipe = self._pipe
        if pipe is None or self.ready is None:
            del self._open[number]
            raise lost()
        pipe.send(EngineCall(number, name, arguments))
        return number

    def _run(self) -> None:
        """Keep a process running until this is closed."""
        wait = FIRST
        while not self._closing.is_set():
            started = time.monotonic()
            error = self._live()
            if not self._first.done():
                self._first.set_exception(error)
                return
            if time.monotonic() - started > STEADY:
                wait = FIRST
            self.error = f"{self.name}: {error}"
            if not self._closing.is_set():
                message = f"worker {self.error}; it is started again in {wait:g} s"
                print(shown(message), file=sys.stderr, flush=True)
            if not self._closing.wait(wait):
                self.restarts += 1
            wait = min(2 * wait, LONGEST)

    def _live(self) -> Exception:
        """Run one process from start to end; return why it ended."""
        ours, theirs = SPAWN.Pipe()
        process = self._process = SPAWN.Process(target=work, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()  # so that `receive` notices the end of the process
        pipe = self._pipe = MessagePipe(ours)
        error: Exception | None = None
        try:
            while True:
                messages = pipe.receive()
                for message in messages:
                    if isinstance(message, Failed):
                        error = message.error
                    elif not isinstance(message, Reply):
                        self._update(message)
                self._deliver([m for m in messages if isinstance(m, Reply)])
        except EOFError:
            pass
        self.ready, self._pipe, self.stats = None, None, IDLE
        self._deliver([Reply(number, lost()) for number in list(self._open)])
        pipe.close()
        process.join(END)
        if process.exitcode is None:
            process.kill()
            process.join()
        return error or ExecutionError(f"the process ended with code {process.exitcode}")

    def _update(self, message: Any) -> None:
        if isinstance(message, Stats):
            self.stats = message
        elif isinstance(message, ProgressReport):
            self._progress(*message)
        elif isinstance(message, Ready):
            self.ready, self.error = message, ""
            if not self._first.done():
                self._first.set_result(message)

    def _deliver(self, replies: Sequence[Reply]) -> None:
        """Give replies to their receivers, waking each event loop once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[Any], Any]]] = {}
        for number, reply in replies:
            value = lost() if isinstance(reply, DeviceLost) else reply
            receiver = self._open.get(number)
            if isinstance(receiver, EventQueue):
                by_loop.setdefault(receiver.loop, []).append((receiver.queue, value))
            elif receiver is not None:
                del self._open[number]
                (receiver.set_exception if isinstance(value, Exception) else receiver.set_result)(value)
        for loop, events in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_put, events)


def _put(events: Sequence[tuple[asyncio.Queue[Any], Any]]) -> None:
    for queue, event in events:
        queue.put_nowait(event)


def lost() -> ApiError:
    """Return the error of requests to a worker that ended."""
    return ApiError(503, "the model's worker ended, and is started again: try again soon", "worker_lost", retry=5)


class WorkerPool:
    """A model on one or several workers, as an engine. `open_workers` makes it."""

    def __init__(self, name: str, workers: Sequence[Worker], readies: Sequence[Ready]) -> None:
        self._workers = workers
        first = readies[0]
        self.model: Served = first.model._replace(name=name, sequences=sum(r.model.sequences for r in readies))
        self.note = first.note
        atexit.register(self.close)  # before multiprocessing waits for processes

    def encode(self, prompt: str) -> list[int]:
        return self._least_loaded().call("encode", prompt)  # type: ignore[no-any-return]

    def stats(self) -> Stats:
        down = [w for w in self._workers if w.ready is None]
        sums = {name: sum(getattr(w.stats, name) for w in self._workers) for name in SUMMED}
        count, restarts = len(self._workers), sum(w.restarts for w in self._workers)
        error = "; ".join(w.error for w in down) if len(down) == count else ""
        return Stats(**sums, error=error, workers=count, down=len(down), restarts=restarts)

    def close(self) -> None:
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.close()

    def _least_loaded(self) -> Worker:
        """Return the ready worker with the fewest requests."""
        ready = [w for w in self._workers if w.ready is not None]
        if not ready:
            raise lost()
        return min(ready, key=lambda w: w.load)


class TextWorkers(WorkerPool):
    """A language model."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self._least_loaded().call("encode_chat", messages)  # type: ignore[no-any-return]

    def stream(self, prompt: Sequence[int], options: BatchOptions) -> AsyncGenerator[Event, None]:
        return self._least_loaded().stream(prompt, options)


class EncoderWorkers(WorkerPool):
    """An encoder."""

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        return self._least_loaded().call("embed", prompts)  # type: ignore[no-any-return]


def open_workers(name: str, makes: Sequence[tuple[str, Make]], progress: Progress = silent) -> WorkerPool:
    """Start a worker for each pair of a place and what makes an engine there, one after the other."""
    workers: list[Worker] = []
    readies: list[Ready] = []
    try:
        for where, make in makes:
            workers.append(Worker(f"{name} on {where}", make))
            readies.append(workers[-1].start(progress))
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    return (TextWorkers if readies[0].writes else EncoderWorkers)(name, workers, readies)
