"""A request to an engine as its caller sees it: events as they come, and what they add up to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import NamedTuple

from .generation import FinishReason, Generation
from .prompts import Writer
from .sampling import Sampling, Seen
from .schedule import Request


class Piece(NamedTuple):
    """What a token adds to the text: nothing yet, where a character or a stop string may still be completed.

    Text that was held back to the end belongs to no token.
    """

    text: str
    token: int | None = None
    logprob: float = 0.0
    raw: bytes | None = None  # the token's own, which may be a part of a character; None: not known


class Finished(NamedTuple):
    """The last event of a request, with what was counted."""

    reason: FinishReason
    prompt_tokens: int
    tokens: int
    cached_tokens: int = 0  # of the prompt, found in pages that others left


Told = Piece | Finished | Exception


class Handle(Iterator[Piece]):
    """A request on its way: its pieces as they come; `generation` is what came so far."""

    def __init__(
        self,
        request: Request,
        generation: Generation,
        writer: Writer,
        sampling: Sampling,
        seen: Seen,
        cancel: Callable[[], None],
        tell: Callable[[Told], object] | None,
    ) -> None:
        self.request, self.generation, self.sampling, self.seen = request, generation, sampling, seen
        self.cancel = cancel  # end it before the next run; from any thread
        self._writer = writer
        self._queue: SimpleQueue[Told] = SimpleQueue()
        self._tell = tell or self._queue.put
        self._over = False
        self._since = 0.0  # when it began, or when its first token came

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

    def tell(self, event: Told) -> None:
        """One more event, to whom it concerns."""
        try:
            self._tell(event)
        except RuntimeError:  # an event loop that is closed
            self.cancel()

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
        self.tell(Piece(self._writer.push(token, logprob), token, logprob, self._writer.bytes_of(token)))
        return self._writer.stopped

    def finish(self, reason: FinishReason) -> None:
        rest = self._writer.finish()
        if rest:
            self.tell(Piece(rest))
        made = self.generation
        made.finish_reason = reason
        self.tell(Finished(reason, len(made.prompt_tokens), len(made.tokens), made.timings.reused_tokens))
