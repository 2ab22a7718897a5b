"""A process with one engine on one GPU, and the pipe to it.

Each engine has its own process, because Python runs one thread at a time: otherwise, the host's part of a step and the
server's work for each token would wait for each other. And a driver that crashes takes nothing else with it.
"""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

from ..errors import DeviceLost, ExecutionError
from .engine import Engine, Served, Stats

Make = Callable[[Callable[[str, int, int], None]], Engine]  # takes a progress callback; is pickled
TICK = 0.25  # seconds between checks of an engine's state
CALLS = 4  # at once


class Ready(NamedTuple):
    """The first message of a worker whose engine accepts requests."""

    model: Served
    writes: bool
    note: str  # why it serves one request at a time


class Failed(NamedTuple):
    """The last message of a worker."""

    error: Exception


class ProgressReport(NamedTuple):
    stage: str
    done: int
    total: int


class EngineCall(NamedTuple):
    """A call of the engine's method `name`, answered by one `Reply`; "submit" is answered by one for each event.

    "cancel" ends the submission with its number, and has no answer.
    """

    number: int
    name: str
    arguments: tuple[Any, ...] = ()


class Reply(NamedTuple):
    """A result, an event, or an exception."""

    number: int
    value: Any


SHUTDOWN = EngineCall(-1, "close")


class MessagePipe:
    """Messages to and from another process. Sending never waits; messages that queue up are sent together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._send, name="ptegpu pipe", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        self._queue.put(message)

    def receive(self, seconds: float | None = None) -> list[Any]:
        """Return what arrives within some seconds; raise EOFError if the other end is closed."""
        try:
            return self._connection.recv() if self._connection.poll(seconds) else []  # type: ignore[no-any-return]
        except OSError:
            raise EOFError from None

    def close(self) -> None:
        """Close the pipe after sending what is queued."""
        self._queue.put(None)
        self._thread.join(TICK * 40)
        self._connection.close()

    def _send(self) -> None:
        try:
            while True:
                messages = [self._queue.get()]
                while messages[-1] is not None and not self._queue.empty():
                    messages.append(self._queue.get())
                self._connection.send([m for m in messages if m is not None])
                if messages[-1] is None:
                    return
        except OSError:
            pass  # `receive` notices it, too


def work(connection: Connection, make: Make) -> None:
    """Run a worker until its pipe is closed, it is told to shut down, or its engine has failed for good."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C and service managers signal all processes; the server decides
    pipe = MessagePipe(connection)
    try:
        engine = make(lambda stage, done, total: pipe.send(ProgressReport(stage, done, total)))
    except Exception as e:
        pipe.send(Failed(sendable(e)))
        pipe.close()
        return
    try:
        _EngineLoop(pipe, engine).run()
    finally:
        engine.close()
        pipe.close()


class _EngineLoop:
    def __init__(self, pipe: MessagePipe, engine: Engine) -> None:
        self._pipe, self._engine = pipe, engine
        self._handles: dict[int, Any] = {}  # of submissions
        self._error: Exception | None = None
        self._stats: Stats | None = None

    def run(self) -> None:
        engine = self._engine
        self._pipe.send(Ready(engine.model, hasattr(engine, "submit"), getattr(engine, "alone", "")))
        with ThreadPoolExecutor(CALLS) as pool:
            while self._error is None:
                try:
                    messages = self._pipe.receive(TICK)
                except EOFError:
                    return
                for message in messages:
                    if message == SHUTDOWN:
                        return
                    if message.name == "submit":
                        self._submit(message)
                    elif message.name != "cancel":
                        pool.submit(self._call, message)
                    elif handle := self._handles.pop(message.number, None):
                        handle.cancel()
                self._check()
        self._pipe.send(Failed(self._error))

    def _check(self) -> None:
        """Send the engine's state if it changed. An engine that can run nothing more ends the worker."""
        stats = self._engine.stats()
        if stats != self._stats:
            self._stats = stats
            self._pipe.send(stats)
        if stats.error:
            self._error = DeviceLost(stats.error)

    def _call(self, call: EngineCall) -> None:
        try:
            self._pipe.send(Reply(call.number, getattr(self._engine, call.name)(*call.arguments)))
        except Exception as e:
            self._pipe.send(Reply(call.number, sendable(e)))
            if isinstance(e, DeviceLost):
                self._error = e

    def _submit(self, call: EngineCall) -> None:
        def on_event(event: Any) -> None:
            self._pipe.send(Reply(call.number, sendable(event) if isinstance(event, Exception) else event))

        try:
            self._handles[call.number] = self._engine.submit(*call.arguments, on_event)  # type: ignore[attr-defined]
        except Exception as e:
            on_event(e)


def sendable(error: Exception) -> Exception:
    """Return the error, or one with its message if it cannot be pickled."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return error if type(copy) is type(error) and str(copy) == str(error) else ExecutionError(str(error))
