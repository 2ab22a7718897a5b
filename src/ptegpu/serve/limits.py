"""Limits for clients: bytes, tokens, seconds, and how many requests may wait."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ApiError, invalid

if TYPE_CHECKING:
    from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """Upper bounds for a request; `queue` and `drain` are for all of them."""

    body: int = 1 << 20  # bytes
    tokens: int = 4096  # generated for each choice
    choices: int = 16  # prompts × n, or texts to embed
    seconds: float = 600.0  # from the first byte of the body to the last of the answer
    queue: int = 64  # waiting choices, besides running ones
    drain: float = 30.0  # seconds that running requests have when the server stops
    head: int = 32 << 10  # bytes before the body
    headers: int = 100
    head_seconds: float = 10.0  # until the head has arrived


class Slots:
    """The unfinished requests of one model: those that run at once, and those that wait."""

    def __init__(self, running: int, queue: int) -> None:
        self._most, self._running = running + queue, running
        self._seconds = 1.0  # of recent requests, on average
        self.taken = 0

    @contextmanager
    def take(self, count: int) -> Iterator[None]:
        """Reserve slots for `count` choices; raise ApiError 429 if too few are free."""
        if count > self._most:
            raise invalid(f"{count} choices at once are more than this server takes: ask for {self._most} at most", "n")
        if self.taken + count > self._most:
            raise self.full()
        self.taken += count
        started = time.monotonic()
        try:
            yield
        finally:
            self.taken -= count
            self._seconds += (time.monotonic() - started - self._seconds) / 8

    def full(self) -> ApiError:
        """Return the error of a full queue, with a guess of when a slot is free."""
        wait = min(60.0, self._seconds * max(1, self.taken // self._running))
        return ApiError(429, "too many requests are waiting: try again later", "queue_full", retry=wait)


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """Return the body, a JSON object; raise ApiError for anything else."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers send other types to any server, without asking it
        raise ApiError(415, "the body must be JSON: send the header Content-Type: application/json")
    size = request.headers.get("content-length", "0")
    if not size.isdecimal() or int(size) > limit:
        raise _too_large(limit)
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > limit:
            raise _too_large(limit)
    return parse(bytes(raw))


def parse(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object of finite numbers and valid text."""
    try:
        text = raw.decode(json.detect_encoding(raw))  # json.loads would let surrogates pass
        body = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(body, ensure_ascii=False).encode()  # half of a pair of surrogates has no bytes
    except (ValueError, RecursionError) as e:
        reason = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)
        raise invalid(f"the body is not valid JSON: {reason}") from None
    if not isinstance(body, dict):
        raise invalid("the body must be a JSON object")
    return body


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes: send less", "body_too_large")
