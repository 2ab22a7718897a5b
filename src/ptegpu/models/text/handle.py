"""A request as its caller sees it: tokens become pieces of text, and these add up to a generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

from ..calls import not_finite
from ..tokenizer import Detokenizer, StopStrings
from .generation import FinishReason, Generation
from .schedule import Reason, TextRequest


class Piece(NamedTuple):
    """The text that a token adds; empty while a character or a stop string may still be completed.

    Text that was held back to the end belongs to no token.
    """

    text: str
    token: int | None = None
    logprob: float = 0.0
    raw: bytes | None = None  # the token's own bytes, which may be part of a character; None: unknown


class Finished(NamedTuple):
    """The last event of a request, with its counts."""

    reason: FinishReason
    prompt_tokens: int
    tokens: int
    cached_tokens: int = 0  # of the prompt, found in the cache


Outcome = Piece | Finished | Exception


class Handle(Iterator[Piece]):
    """A request in progress. Iterate over its pieces; `generation` is the result so far.

    `on_event` is called with each event, in the engine's thread, in place of queueing it for the iterator.
    """

    def __init__(
        self,
        request: TextRequest,
        generation: Generation,
        detokenizer: Detokenizer | None,  # None: no text
        stops: StopStrings,
        bytes_of: Callable[[int], bytes | None] | None = None,
        on_event: Callable[[Outcome], object] | None = None,
    ) -> None:
        self.request, self.generation = request, generation
        self.advance: Callable[[Handle], object] | None = None  # computes the next event, if no thread does
        self.since = 0.0  # when it started, or the time of its latest token
        self._detokenizer, self._stops, self._bytes_of = detokenizer, stops, bytes_of
        self._queue: SimpleQueue[Outcome] = SimpleQueue()
        self._on_event = on_event or self._queue.put
        self._over = False

    def cancel(self) -> None:
        """End the request before its next token; from any thread, or from a signal handler."""
        self.request.cancelled = True

    def wait(self) -> Generation:
        """Wait for the request to finish."""
        for _ in self:
            pass
        return self.generation

    def __next__(self) -> Piece:
        if self._over:
            raise StopIteration
        while self.advance is not None and self._queue.empty():
            self.advance(self)
        outcome = self._queue.get()
        if isinstance(outcome, Piece):
            return outcome
        self._over = True
        if isinstance(outcome, Exception):
            raise outcome
        raise StopIteration

    def send(self, outcome: Outcome) -> None:
        """Pass an event to the caller."""
        try:
            self._on_event(outcome)
        except RuntimeError:  # its event loop is closed
            self.cancel()

    def accept(self, token: int | None, logprob: float, reason: Reason | None) -> None:
        """Add a token to the generation, or end it; send what that gives. Ignore what follows the end."""
        generation = self.generation
        if generation.finish_reason is not None:
            return
        if token is not None or reason == "stop":
            now, timings, count = time.perf_counter(), generation.timings, len(generation.tokens)
            if count:
                timings.decode_tokens, timings.decode_s = count, timings.decode_s + now - self.since
            else:
                reused = timings.reused_tokens = self.request.reused
                timings.prefill_tokens, timings.prefill_s = len(self.request.prompt) - reused, now - self.since
            self.since = now
        if token is not None:
            generation.tokens.append(token)
            generation.logprobs.append(logprob)
            text = self._stops.push(self._detokenizer.push(token)) if self._detokenizer else ""
            generation.text += text
            self.send(Piece(text, token, logprob, self._bytes_of(token) if self._bytes_of else None))
            if self._stops.stopped:
                reason = "stop"
        if reason == "failed":
            self.send(not_finite(len(self.request.tokens) - 1))
        elif reason is not None:
            rest = self._stops.push(self._detokenizer.finish()) + self._stops.finish() if self._detokenizer else ""
            generation.text += rest
            if rest:
                self.send(Piece(rest))
            generation.finish_reason = reason
            count, reused = len(generation.tokens), generation.timings.reused_tokens
            self.send(Finished(reason, len(generation.prompt_tokens), count, reused))


class Stream(Iterator[str]):
    """Pieces of text as they come, whole characters each; `generation` is the result so far."""

    def __init__(self, handle: Handle) -> None:
        self.generation, self.cancel, self._request = handle.generation, handle.cancel, handle.request
        self._pieces: Iterator[str] = (piece.text for piece in handle if piece.text)

    @property
    def cancelled(self) -> bool:
        return self._request.cancelled

    def __next__(self) -> str:
        return next(self._pieces)

    def at_end(self, callback: Callable[[], object]) -> Stream:
        """Call a function when the stream ends or is left; return the stream."""

        def pieces(source: Iterator[str]) -> Iterator[str]:
            try:
                yield from source
            finally:
                callback()

        self._pieces = pieces(self._pieces)
        return self
