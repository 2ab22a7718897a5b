"""Engines without a model: words depend on prompt, seed and position; the speed and failures are configurable."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import numpy as np

from ptegpu.errors import InvalidInput, QueueFull
from ptegpu.models.text.prompts import PromptTooLong
from ptegpu.models.tokenizer import StopStrings
from ptegpu.serve import Event, Finished, Piece, Served, Stats

VOCABULARY = 1000
END = 7  # the token that ends a text


def encode(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


def token_at(prompt: Sequence[int], seed: int, step: int) -> int:
    return zlib.crc32(repr((list(prompt), seed, step)).encode()) % VOCABULARY


def words(prompt: Sequence[int], seed: int, count: int) -> str:
    """Return the text that an engine writes if nothing stops it."""
    return "".join(f" w{token_at(prompt, seed, k)}" for k in range(count))


class FakeEngine:
    """An engine with steps of `delay` seconds that raises `fail` at step `fail_at`; every token has the bytes `raw`."""

    def __init__(
        self,
        *,
        delay: float = 0.0,
        fail: Exception | None = None,
        fail_at: int = 0,
        sequences: int = 4,
        context: int = 64,
        has_chat: bool = True,
        raw: bytes | None = None,
    ) -> None:
        self.model = Served("fake", context, VOCABULARY, has_chat, sequences)
        self.delay, self.fail, self.fail_at, self.raw = delay, fail, fail_at, raw
        self.busy = False
        self.waiting = self.running = self.steps = 0
        self.ended: list[str] = []  # how each request ended
        self.owners: list[str] = []
        self._room = asyncio.Semaphore(sequences)

    def encode(self, prompt: str) -> list[int]:
        """Encode a prompt and check its length, as real engines do."""
        tokens = encode(prompt)
        if len(tokens) > self.model.context:
            raise PromptTooLong(f"the prompt has {len(tokens)} tokens, the model's context holds {self.model.context}")
        return tokens

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        if messages[-1]["role"] == "assistant":
            raise InvalidInput("the chat template refuses this conversation: the assistant spoke last")
        return encode(" ".join(f"<{m['role']}> {m['content']}" for m in messages))

    async def stream(self, prompt: Sequence[int], options: Any) -> AsyncGenerator[Event, None]:
        self.owners.append(options["owner"])
        if self.busy:
            raise QueueFull("many are waiting already; try again later")
        self.waiting += 1
        try:
            await self._room.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        end = "cancelled"
        try:
            async for event in self._events(prompt, options):
                end = event.reason if isinstance(event, Finished) else end
                yield event
        finally:
            self.ended.append(end)
            self.running -= 1
            self._room.release()

    async def _events(self, prompt: Sequence[int], options: Any) -> AsyncGenerator[Event, None]:
        seed = options.get("seed", 0) if options["temperature"] else 0
        stops, count, reason = StopStrings(options["stop"]), 0, None
        while reason is None:
            await asyncio.sleep(self.delay)
            self.steps += 1
            if self.fail is not None and count == self.fail_at:
                raise self.fail
            token = token_at(prompt, seed, count)
            if token == END:
                reason = "stop"
                break
            count += 1
            yield Piece(stops.push(f" w{token}"), token, -token / 100, self.raw)
            if stops.stopped:
                reason = "stop"
            elif count == options["max_tokens"]:
                reason = "length"
            elif len(prompt) + count > self.model.context:
                reason = "context"
        if rest := stops.finish():
            yield Piece(rest)
        yield Finished(reason, len(prompt), count, len(prompt) // 16 * 16)  # type: ignore[arg-type]

    def stats(self) -> Stats:
        return Stats(self.waiting, self.running, self.running, 0.0, self.running, 8, str(self.fail or ""))

    def close(self) -> None:
        pass


class FakeEncoder:
    """An encoder whose rows hold the length of a text, its first token, and a constant."""

    model = Served("fake", 64, VOCABULARY, False)

    def encode(self, prompt: str) -> list[int]:
        """Encode a prompt and check its length, as real engines do."""
        tokens = encode(prompt)
        if len(tokens) > self.model.context:
            raise PromptTooLong(f"the prompt has {len(tokens)} tokens, the model's context holds {self.model.context}")
        return tokens

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        return np.array([[len(p), p[0] / 8, -0.5] for p in prompts], np.float32)

    def stats(self) -> Stats:
        return Stats(0, 0, 0, 0.0, 0, 0)

    def close(self) -> None:
        pass
