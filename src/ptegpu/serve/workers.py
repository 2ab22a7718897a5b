"""One model on several GPUs: a worker for each, of which the one with the fewest requests is asked.

A worker that ends fails its requests with 503, and is started again: after a second, then two, four, up to a minute.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import multiprocessing
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DeviceLost, ExecutionError
from ..printing import shown
from ..progress import Progress as Told
from ..progress import silent
from .engine import Event, Finished, Served, Stats
from .errors import ApiError
from .worker import Answer, Ask, Call, End, Failed, Leave, Line, Make, Progress, Ready, work

if TYPE_CHECKING:
    import numpy as np

    from ..models.text.batch import BatchOptions

SPAWN = multiprocessing.get_context("spawn")  # a GPU does not survive a fork
FIRST, LONGEST = 1.0, 60.0  # seconds before a worker is started again
STEADY = 60.0  # seconds after which a worker counts as well
END = 30.0  # seconds that a worker has to end
SUMMED = ("queue", "running", "batch", "tokens_per_second", "pages_used", "pages_total")
IDLE = Stats(0, 0, 0, 0.0, 0, 0)


class Waiting(NamedTuple):
    """Someone in an event loop who waits for events."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Any]


class Worker:
    """A process that is started again when it ends. `name` says which it is."""

    def __init__(self, name: str, make: Make) -> None:
        self.name, self._make = name, make
        self.ready: Ready | None = None  # while it can be asked
        self.error = ""  # why not
        self.restarts = 0
        self.stats = IDLE
        self._process: Any = None
        self._line: Line | None = None
        self._open: dict[int, Future[Any] | Waiting] = {}
        self._numbers = itertools.count()
        self._closing = threading.Event()
        self._first: Future[Ready] = Future()
        self._told: Told = silent
        self._thread = threading.Thread(target=self._run, name=f"ptegpu worker {name}", daemon=True)

    def start(self, progress: Told = silent) -> Ready:
        """Waits until it can be asked; raises what kept it from that."""
        self._told = progress
        self._thread.start()
        return self._first.result()

    @property
    def asked(self) -> int:
        """Requests and calls that it has not answered."""
        return len(self._open)

    def call(self, name: str, *arguments: Any) -> Any:
        """What a method of its engine gives; waits for it."""
        answer: Future[Any] = Future()
        self._send(lambda number: Call(number, name, arguments), answer)
        return answer.result()

    async def stream(self, prompt: Sequence[int], options: BatchOptions) -> AsyncGenerator[Event, None]:
        told = Waiting(asyncio.get_running_loop(), asyncio.Queue())
        number = self._send(lambda number: Ask(number, list(prompt), options), told)
        try:
            while True:
                event = await told.queue.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finished):
                    break
        finally:
            self._open.pop(number, None)
            if line := self._line:
                line.send(Leave(number))

    def close(self) -> None:
        """Ends the process: at once if nobody can ask it yet, else when its engine is closed."""
        self._closing.set()
        if self.ready and self._line:
            self._line.send(End())
        elif self._process:
            self._process.kill()
        if self._thread.ident is not None:
            self._thread.join(END)
            if self._thread.is_alive():
                self._process.kill()
                self._thread.join()

    def _send(self, message: Callable[[int], Any], answer: Future[Any] | Waiting) -> int:
        number = next(self._numbers)
        self._open[number] = answer  # before the look: so whoever is not told here is told when the process ends
        line = self._line
        if line is None or self.ready is None:
            del self._open[number]
            raise lost()
        line.send(message(number))
        return number

    def _run(self) -> None:
        """Keeps a process, until this is closed."""
        wait = FIRST
        while not self._closing.is_set():
            begun = time.monotonic()
            error = self._live()
            if not self._first.done():
                self._first.set_exception(error)
                return
            if time.monotonic() - begun > STEADY:
                wait = FIRST
            self.error = f"{self.name}: {error}"
            if not self._closing.is_set():
                told = f"worker {self.error}; it is started again in {wait:g} s"
                print(shown(told), file=sys.stderr, flush=True)
            if not self._closing.wait(wait):
                self.restarts += 1
            wait = min(2 * wait, LONGEST)

    def _live(self) -> Exception:
        """A process, from its start to its end; why it ended."""
        ours, theirs = SPAWN.Pipe()
        process = self._process = SPAWN.Process(target=work, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()  # so that its end is seen here
        line = self._line = Line(ours)
        error: Exception | None = None
        try:
            while True:
                messages = line.receive()
                for message in messages:
                    if isinstance(message, Failed):
                        error = message.error
                    elif not isinstance(message, Answer):
                        self._hear(message)
                self._give([m for m in messages if isinstance(m, Answer)])
        except EOFError:
            pass
        self.ready, self._line, self.stats = None, None, IDLE
        self._give([Answer(number, lost()) for number in list(self._open)])
        line.close()
        process.join(END)
        if process.exitcode is None:
            process.kill()
            process.join()
        return error or ExecutionError(f"the process ended with code {process.exitcode}")

    def _hear(self, message: Any) -> None:
        if isinstance(message, Stats):
            self.stats = message
        elif isinstance(message, Progress):
            self._told(*message)
        elif isinstance(message, Ready):
            self.ready, self.error = message, ""
            if not self._first.done():
                self._first.set_result(message)

    def _give(self, answers: Sequence[Answer]) -> None:
        """Answers to whom they are for; an event loop is woken once for all of its own."""
        events: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[Any], Any]]] = {}
        for number, given in answers:
            value = lost() if isinstance(given, DeviceLost) else given
            to = self._open.get(number)
            if isinstance(to, Waiting):
                events.setdefault(to.loop, []).append((to.queue, value))
            elif to is not None:
                del self._open[number]
                (to.set_exception if isinstance(value, Exception) else to.set_result)(value)
        for loop, each in events.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_put, each)


def _put(each: Sequence[tuple[asyncio.Queue[Any], Any]]) -> None:
    for queue, event in each:
        queue.put_nowait(event)


def lost() -> ApiError:
    """What those are told who asked a worker that ended."""
    return ApiError(503, "the model's worker ended, and is started again: try again soon", "worker_lost", retry=5)


class Workers:
    """A model as an engine. Make it with `open_workers`."""

    def __init__(self, name: str, workers: Sequence[Worker], readies: Sequence[Ready]) -> None:
        self._name, self._workers = name, workers
        first = readies[0].model
        self.model: Served = first._replace(name=name, sequences=sum(r.model.sequences for r in readies))
        self.note = readies[0].note
        atexit.register(self.close)  # before multiprocessing waits for processes

    def encode(self, prompt: str) -> list[int]:
        return self._least().call("encode", prompt)  # type: ignore[no-any-return]

    def stats(self) -> Stats:
        each = [w.stats for w in self._workers]
        down = [w for w in self._workers if w.ready is None]
        sums = {name: sum(getattr(s, name) for s in each) for name in SUMMED}
        error = "; ".join(w.error for w in down) if len(down) == len(each) else ""
        restarts = sum(w.restarts for w in self._workers)
        return Stats(**sums, error=error, workers=len(each), down=len(down), restarts=restarts)

    def close(self) -> None:
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.close()

    def _least(self) -> Worker:
        """The one with the fewest requests, of those that can be asked."""
        ready = [w for w in self._workers if w.ready is not None]
        if not ready:
            raise lost()
        return min(ready, key=lambda w: w.asked)


class Writers(Workers):
    """A language model."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self._least().call("encode_chat", messages)  # type: ignore[no-any-return]

    def stream(self, prompt: Sequence[int], options: BatchOptions) -> AsyncGenerator[Event, None]:
        return self._least().stream(prompt, options)


class Encoders(Workers):
    """An encoder."""

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        return self._least().call("embed", prompts)  # type: ignore[no-any-return]


def open_workers(name: str, makes: Sequence[tuple[str, Make]], progress: Told = silent) -> Writers | Encoders:
    """An engine of a worker for each of `makes`, with where each is; they start one after the other."""
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
    return (Writers if readies[0].writes else Encoders)(name, workers, readies)
