"""Many requests on one model at once, for servers and programs with many texts.

    with BatchEngine("model.pte") as engine:
        handles = [engine.submit(text, {"max_tokens": 50}) for text in texts]
        for piece in handles[0]:
            print(piece.text, end="")
        handles[1].wait().text

`submit`, `stats` and a handle's `cancel` may be called from any thread; `stream` is for an event loop.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import warnings
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

from ...errors import InvalidInput, UnsupportedProgram
from ..door import Loading, Openable, ProgramSource, loading
from ..kinds import LANGUAGE
from .draft import open_draft
from .engine import Stats, TextEngine
from .handle import Finished, Handle, Outcome, Piece
from .paged import PREFILL_ROWS, PagedRunner
from .prompts import GenerationOptions, Prompt, Prompts
from .sequential import SequentialRunner
from .signature import read_signature
from .speculation import Speculate, count_of

SEQUENCES = 64
QUEUE = 256


class BatchOptions(GenerationOptions, total=False):
    """Options of generation, with a deadline and an owner."""

    timeout: float  # seconds; a request that is not finished by then ends with "deadline"
    owner: str  # owners take turns: many requests of one do not delay those of others


class Served(NamedTuple):
    """A model as clients see it."""

    name: str
    context: int  # tokens
    vocabulary: int
    has_chat: bool
    sequences: int = 1  # requests that run at once


class BatchEngine(TextEngine, Prompts):
    """A language model for many requests at once. Close it, or use it as a context manager.

    At most `sequences` requests run at once and `queue` wait (None: any number). `memory` is the upper bound for caches
    in bytes; by default, they take what all sequences can need, or half of what weights leave free. A run has at most
    `rows` tokens, and at most `beside` tokens of prompts when texts are in progress: fewer make the time between tokens
    more even, and prompts slower. Other arguments are those of `LanguageModel`. A program that cannot be turned into
    one for several sequences serves one request at a time, and `alone` says why; `one_by_one=False` refuses it.
    `speculate` is that of requests without the option, by default "off", or "auto" with a draft model. `draft` proposes
    tokens while a single request runs.
    """

    def __init__(
        self,
        source: Openable,
        options: Loading = None,
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        sequences: int = SEQUENCES,
        queue: int | None = QUEUE,
        memory: int | None = None,
        rows: int | None = None,
        beside: int = PREFILL_ROWS,
        one_by_one: bool = True,
        speculate: Speculate | None = None,
        draft: Openable | None = None,
        **more: Any,
    ) -> None:
        for name, value in (("sequences", sequences), ("queue", queue), ("rows", rows), ("beside", beside)):
            if value is not None and value < 1:
                raise InvalidInput(f"{name} must be at least 1, not {value}")
        if speculate is None:
            speculate = "off" if draft is None else "auto"
        count_of(speculate)  # refuses other values
        options = loading(options, more)
        opened = ProgramSource.of(source, options, LANGUAGE)
        Prompts.__init__(self, opened.path, read_signature(opened.file, opened.card), tokenizer)
        limit = math.inf if queue is None else queue
        self.alone = ""
        runner: PagedRunner | SequentialRunner
        try:
            runner = PagedRunner(
                opened.program, self.signature, options, sequences=sequences, data=data, memory=memory, rows=rows,
                prefill_rows=beside, queue=limit,
            )  # fmt: skip
        except UnsupportedProgram as reason:
            if not one_by_one:
                raise
            self.alone = str(reason)
            warnings.warn(f"{reason}; requests are served one at a time", stacklevel=2)
            runner = SequentialRunner(opened, self.signature, options, data=data, chunk=rows, queue=limit)
        TextEngine.__init__(self, runner)
        self.speculate = speculate
        try:
            if draft is not None:
                open_draft(self, runner, draft, options)
            if speculate != "off":
                runner.refusal_to_verify()  # loads what verifies
        except BaseException:
            self.close()
            raise
        name, has_chat = self._path.stem if self._path else "model", self.has_tokenizer and self.tokenizer.has_chat
        context, vocabulary = self.signature.context, self.signature.vocabulary
        self.model = Served(name, context, vocabulary, has_chat, runner.scheduler.sequences)

    def stats(self) -> Stats:
        return super().stats()._replace(proposed=self.acceptance.proposed, accepted=self.acceptance.accepted)

    def submit(
        self, prompt: Prompt, options: BatchOptions | None = None, on_event: Callable[[Outcome], object] | None = None
    ) -> Handle:
        """Queue a request; QueueFull if too many wait already.

        With `on_event`, the engine's thread calls that with each event, and the handle is not for iterating.
        """
        settings: dict[str, Any] = {**(options or {})}
        deadline, owner = time.monotonic() + settings.pop("timeout", math.inf), settings.pop("owner", "")
        tokens = self.encode(prompt)
        return self.enqueue(
            self.request(
                tokens, settings, self.runner, deadline=deadline, owner=owner, with_bytes=True, on_event=on_event
            )
        )

    async def stream(
        self, prompt: Prompt, options: BatchOptions | None = None
    ) -> AsyncGenerator[Piece | Finished, None]:
        """Yield pieces, then Finished. Leaving the loop, or cancelling its task, cancels the request."""
        loop, outcomes = asyncio.get_running_loop(), asyncio.Queue[Outcome]()
        handle = self.submit(prompt, options, lambda event: loop.call_soon_threadsafe(outcomes.put_nowait, event))
        try:
            while True:
                outcome = await outcomes.get()
                if isinstance(outcome, Exception):
                    raise outcome
                yield outcome
                if isinstance(outcome, Finished):
                    break
        finally:
            handle.cancel()
