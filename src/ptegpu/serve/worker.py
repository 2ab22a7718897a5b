"""A process with one engine on one GPU, and the line that it is asked over.

An engine has a process of its own, since what a step costs the host, and what the server does for each token, would
otherwise wait for each other: Python runs one thread at a time. And a driver that crashes takes nothing else with it.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

from ..errors import DeviceLost, ExecutionError
from .engine import Engine, Served, Stats

Make = Callable[[Callable[[str, int, int], None]], Engine]  # given whom to tell how far it is; goes to another process
TICK = 0.25  # seconds from one look at an engine to the next
CALLS = 4  # at once


class Ready(NamedTuple):
    """What a worker says of its engine when it can be asked."""

    model: Served
    writes: bool
    note: str  # why it answers one request at a time


class Failed(NamedTuple):
    """Why a worker ends."""

    error: Exception


class Progress(NamedTuple):
    stage: str
    done: int
    total: int


class Answer(NamedTuple):
    """To a call, or an event of a request."""

    number: int
    value: Any


class Call(NamedTuple):
    """Of a method; the answer is what it gives, or raises."""

    number: int
    name: str
    arguments: tuple[Any, ...]


class Ask(NamedTuple):
    """A request; its answers are events."""

    number: int
    prompt: list[int]
    options: Any


class Leave(NamedTuple):
    """A request is of no interest any more."""

    number: int


class End(NamedTuple):
    """Close the engine, and go."""


class Line:
    """Messages to another process. Sending never waits; what is sent while the line is busy goes together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._out: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="ptegpu line", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        self._out.put(message)

    def receive(self, seconds: float | None = None) -> list[Any]:
        """What came, within some seconds; EOFError when the other end is gone."""
        try:
            return self._connection.recv() if self._connection.poll(seconds) else []  # type: ignore[no-any-return]
        except OSError:
            raise EOFError from None

    def close(self) -> None:
        """After what was sent."""
        self._out.put(None)
        self._thread.join(TICK * 40)
        self._connection.close()

    def _send(self) -> None:
        try:
            while (message := self._out.get()) is not None:
                messages = [message, *self._waiting()]
                self._connection.send([m for m in messages if m is not None])
                if messages[-1] is None:
                    return
        except OSError:
            pass  # who receives sees it, too

    def _waiting(self) -> Iterator[Any]:
        while not self._out.empty():
            yield (message := self._out.get())
            if message is None:
                return


def work(connection: Connection, make: Make) -> None:
    """All that a worker does. It ends when the line does, or when its engine has failed for good."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C and service managers tell all processes; the server decides
    line = Line(connection)
    try:
        engine = make(lambda stage, done, total: line.send(Progress(stage, done, total)))
    except Exception as e:
        line.send(Failed(sendable(e)))
        line.close()
        return
    try:
        _Work(line, engine).run()
    finally:
        engine.close()
        line.close()


class _Work:
    def __init__(self, line: Line, engine: Engine) -> None:
        self._line, self._engine = line, engine
        self._asked: dict[int, Any] = {}
        self._error: Exception | None = None
        self._stats: Stats | None = None

    def run(self) -> None:
        engine = self._engine
        self._line.send(Ready(engine.model, hasattr(engine, "submit"), getattr(engine, "alone", "")))
        with ThreadPoolExecutor(CALLS) as pool:
            while self._error is None:
                try:
                    messages = self._line.receive(TICK)
                except EOFError:
                    return
                for message in messages:
                    if isinstance(message, End):
                        return
                    if isinstance(message, Call):
                        pool.submit(self._call, message)
                    elif isinstance(message, Ask):
                        self._ask(message)
                    elif handle := self._asked.pop(message.number, None):
                        handle.cancel()
                self._look()
        self._line.send(Failed(self._error))

    def _look(self) -> None:
        """Tell how busy the engine is; an engine that can run nothing more ends the worker."""
        stats = self._engine.stats()
        if stats != self._stats:
            self._stats = stats
            self._line.send(stats)
        if stats.error:
            self._error = DeviceLost(stats.error)

    def _call(self, call: Call) -> None:
        try:
            self._line.send(Answer(call.number, getattr(self._engine, call.name)(*call.arguments)))
        except Exception as e:
            self._line.send(Answer(call.number, sendable(e)))
            if isinstance(e, DeviceLost):
                self._error = e

    def _ask(self, ask: Ask) -> None:
        def tell(event: Any) -> None:
            told = sendable(event) if isinstance(event, Exception) else event
            self._line.send(Answer(ask.number, told))

        try:
            self._asked[ask.number] = self._engine.submit(ask.prompt, ask.options, tell)  # type: ignore[attr-defined]
        except Exception as e:
            tell(e)


def sendable(error: Exception) -> Exception:
    """The error, or one with its words if it cannot be sent."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return error if type(copy) is type(error) and str(copy) == str(error) else ExecutionError(str(error))
