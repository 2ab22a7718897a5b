"""Engines for worker processes: their texts name the process that wrote them; one prompt ends the engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.serve.fake import FakeEncoder, encode

from ptegpu.errors import DeviceLost, InvalidInput
from ptegpu.serve import Finished, Piece, Served, Stats

LOSE, REFUSE = "lose", "refuse"


class Handle:
    def __init__(self) -> None:
        self.left = threading.Event()

    def cancel(self) -> None:
        self.left.set()


class Batch:
    """An engine that writes its process number every `delay` seconds."""

    def __init__(self, delay: float) -> None:
        self.model = Served("fake", 64, 1000, True, 4)
        self._delay, self._running, self._error = delay, 0, ""

    def encode(self, prompt: str) -> list[int]:
        return encode(prompt)

    def encode_chat(self, messages: Sequence[Any]) -> list[int]:
        if messages[-1]["content"] == REFUSE:
            raise InvalidInput("the chat template refuses this")
        return encode(messages[-1]["content"])

    def submit(self, prompt: Sequence[int], options: Any, tell: Callable[[Any], object]) -> Handle:
        if list(prompt) == encode(LOSE):
            self._error = "the GPU device was lost"
            tell(DeviceLost(self._error))
        handle = Handle()
        threading.Thread(target=self._write, args=(handle, options, tell), daemon=True).start()
        return handle

    def _write(self, handle: Handle, options: Any, tell: Callable[[Any], object]) -> None:
        self._running += 1
        for _ in range(options["max_tokens"]):
            if handle.left.wait(self._delay):
                break
            tell(Piece(f" {os.getpid()}", 1))
        tell(Finished("cancelled" if handle.left.is_set() else "length", 1, options["max_tokens"]))
        self._running -= 1

    def stats(self) -> Stats:
        return Stats(0, self._running, self._running, 0.0, self._running, 8, self._error)

    def close(self) -> None:
        pass


def make_batch(delay: float, progress: Callable[[str, int, int], None]) -> Batch:
    progress("Planning", 1, 2)
    return Batch(delay)


def make_once(mark: Path, progress: Any) -> Batch:
    """Return an engine the first time, and fail afterwards."""
    if mark.exists():
        raise InvalidInput("there is no such GPU")
    mark.touch()
    return Batch(0.01)


def make_encoder(progress: Any) -> FakeEncoder:
    return FakeEncoder()


def make_none(progress: Any) -> Any:
    raise InvalidInput("there is no such GPU")


def rows(texts: Sequence[str]) -> np.ndarray:
    return FakeEncoder().embed([encode(text) for text in texts])
