"""Clients of a language model: in this process or over HTTP, in a closed or an open loop.

Prompts are random tokens, so no tokenizer is needed. In the process, a text ends only after the requested number of
tokens. Times are those of `time.perf_counter` when each token arrives.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from ptegpu.errors import PtegpuError
from ptegpu.models.text.batch import BatchEngine
from ptegpu.models.text.handle import Finished, Piece

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt: list[int]
    max_tokens: int


@dataclass
class Answer:
    """The answer that a client got."""

    ask: Ask
    started: float
    times: list[float] = field(default_factory=list)  # of each token
    tokens: list[Any] = field(default_factory=list)  # ids, or over HTTP their texts
    logprobs: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.times, self.times[1:])]


class Target(Protocol):
    """A model that answers clients."""

    async def ask(self, request: Ask) -> Answer: ...


class InProcess:
    """An engine, without HTTP. Times are measured in the engine's thread."""

    def __init__(self, engine: BatchEngine) -> None:
        self._engine = engine

    async def ask(self, request: Ask) -> Answer:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        answer = Answer(request, time.perf_counter())

        def tell(event: Piece | Finished | Exception) -> None:
            if isinstance(event, Piece):
                if event.token is not None:
                    answer.times.append(time.perf_counter())
                    answer.tokens.append(event.token)
                    answer.logprobs.append(event.logprob)
                return
            if isinstance(event, Exception):
                answer.error = f"{type(event).__name__}: {event}"
            loop.call_soon_threadsafe(over.set)

        try:
            self._engine.submit(request.prompt, {"max_tokens": request.max_tokens, "stop_tokens": ()}, tell)
        except PtegpuError as error:
            answer.error = f"{type(error).__name__}: {error}"
        else:
            await over.wait()
        return answer


class Http:
    """A server with OpenAI's API. Its models end a text with their own stop tokens."""

    def __init__(self, url: str, key: str = "", model: str | None = None) -> None:
        self._url, self._key, self._model = url.rstrip("/"), key, model

    async def ask(self, request: Ask) -> Answer:
        body: dict[str, Any] = {"prompt": request.prompt, "max_tokens": request.max_tokens, "temperature": 0}
        body |= {"stream": True, "logprobs": 0} | ({"model": self._model} if self._model else {})
        answer = Answer(request, time.perf_counter())
        try:
            async for event in events(f"{self._url}/completions", body, self._key):
                for choice in event["choices"]:
                    scores = choice["logprobs"] or {"tokens": [], "token_logprobs": []}
                    answer.times += [time.perf_counter()] * len(scores["tokens"])
                    answer.tokens += scores["tokens"]
                    answer.logprobs += scores["token_logprobs"]
        except (Refused, OSError, asyncio.IncompleteReadError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        return answer


class Refused(Exception):
    """An error as answer, with its status and message. The status is 200 after a stream has begun."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


async def events(url: str, body: Any, key: str = "") -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream. Leaving the loop closes the connection."""
    async with Connection(url) as connection:
        await connection.post(json.dumps(body).encode(), key)
        status = await connection.status()
        rest = b""
        async for part in connection.parts():
            *complete, rest = (rest + part).split(b"\n\n")
            for event in complete if status == 200 else ():
                if event != b"data: [DONE]":
                    content = json.loads(event.removeprefix(b"data: "))
                    if "error" in content:
                        raise Refused(status, content["error"]["message"])
                    yield content
        if status != 200:
            raise Refused(status, rest.decode(errors="replace")[:300])


class Connection:
    """One request over HTTP/1.1, without a library, so that it can send invalid requests."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname, parts.port or 80, parts.path
        if parts.scheme != "http":
            raise ValueError(f"invalid address {url}: expected http://")

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # the other side closed it first

    async def post(
        self,
        body: bytes,
        key: str = "",
        kind: str = "application/json",
        method: str = "POST",
        length: int | None = None,
    ) -> None:
        """Send a request. `length` may be larger than the body."""
        head = f"{method} {self._path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {kind}\r\nConnection: close\r\n"
        head += f"Content-Length: {len(body) if length is None else length}\r\n"
        head += f"Authorization: Bearer {key}\r\n" if key else ""
        self._writer.write(head.encode() + b"\r\n" + body)
        await self._writer.drain()

    async def status(self) -> int:
        """Return the status of the answer, and read its headers."""
        line = await self._reader.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        self._chunked = False
        while (header := await self._reader.readline()).strip():
            self._chunked |= header.lower().startswith(b"transfer-encoding: chunked")
        return int(line.split()[1])

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body of the answer in parts."""
        while self._chunked and (size := int(await self._reader.readline(), 16)):
            yield (await self._reader.readexactly(size + 2))[:-2]
        while not self._chunked and (part := await self._reader.read(65536)):
            yield part


# --- loops


async def some_at_a_time(target: Target, asks: Iterable[Ask], clients: int) -> list[Answer]:
    """Run a closed loop: each client asks again as soon as it has its answer."""
    left, answers = iter(asks), list[Answer]()

    async def client() -> None:
        for request in left:
            answers.append(await target.ask(request))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def as_they_come(target: Target, asks: Sequence[Ask], rate: float, chosen: random.Random) -> list[Answer]:
    """Run an open loop: requests arrive at random with a mean `rate` per second, regardless of earlier ones."""
    running: list[Awaitable[Answer]] = []
    due = time.perf_counter()
    for request in asks:
        due += chosen.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        running.append(asyncio.create_task(target.ask(request)))
    return list(await asyncio.gather(*running))


# --- requests


def prompt_of(length: int, vocabulary: int, chosen: random.Random) -> list[int]:
    """Return random tokens, so that no two prompts share a beginning."""
    return [chosen.randrange(vocabulary) for _ in range(length)]


def lengths(count: int, context: int, most: int, chosen: random.Random) -> list[tuple[int, int]]:
    """Return realistic lengths of prompts and answers in tokens: most are short, some are long."""

    def length(middle: float, spread: float, limit: int) -> int:
        return max(1, min(limit, round(chosen.lognormvariate(math.log(middle), spread))))

    answers = [length(most / 2, 0.6, most) for _ in range(count)]
    return [(length(128, 1.0, context - answer), answer) for answer in answers]


# --- figures


def figures(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Return counts, tokens per second, and milliseconds to the first token and between tokens."""
    good = [a for a in answers if not a.error]
    tokens = sum(len(a.times) for a in good)
    return {
        "requests": len(answers),
        "errors": len(answers) - len(good),
        "first error": next((a.error for a in answers if a.error), ""),
        "prompt tokens": sum(len(a.ask.prompt) for a in answers),
        "tokens": tokens,
        "seconds": seconds,
        "tok/s": tokens / seconds,
        "first ms": percentiles([a.times[0] - a.started for a in good if a.times]),
        "between ms": percentiles([gap for a in good for gap in a.gaps]),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds, or nothing without samples."""
    values = np.percentile(seconds, PERCENTILES) if len(seconds) else ()
    return {f"p{p}": float(value) * 1e3 for p, value in zip(PERCENTILES, values)}


def joint_rate(answers: Sequence[Answer]) -> float:
    """Return tokens per second while all were being written: from the latest first token to the earliest last one."""
    good = [a for a in answers if len(a.times) > 1]
    begin, end = max(a.times[0] for a in good), min(a.times[-1] for a in good)
    count = sum(begin < t <= end for a in good for t in a.times)
    return count / (end - begin) if end > begin else 0.0


async def timed(load: Awaitable[list[Answer]]) -> tuple[list[Answer], float]:
    began = time.perf_counter()
    answers = await load
    return answers, time.perf_counter() - began
