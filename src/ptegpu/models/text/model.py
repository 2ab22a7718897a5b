"""A language model: prompts in, text out. The KV cache and the choice of the next token stay on the GPU."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ...errors import InvalidInput, UnsupportedProgram
from ...gpu import Lock
from ..door import Loading, Openable, ProgramSource, loading
from ..kinds import LANGUAGE
from .draft import open_draft
from .engine import TextEngine
from .generation import Generation
from .handle import Stream
from .pictures import Picture, Pictures
from .prompts import GenerationOptions, Prompt, Prompts
from .sequential import SequentialRunner
from .signature import read_signature

if TYPE_CHECKING:
    from ..template import Message
    from .chat import Conversation

LOOKAHEAD = 4  # decode steps in one submit, if the caller waits for the end only
BATCH_SEQUENCES = 16  # of `generate_batch`, at once


class LanguageModel(Prompts):
    """A language model on a GPU. Close it, or use it as a context manager.

    `source` may also be a checkpoint folder, which is exported once, as by `ptegpu export llm`, and kept in the cache.
    `options` are `LoadOptions`, or a device; `more` are their fields by name. The tokenizer is searched for beside the
    model (`NAME.tokenizer.json`, `tokenizer.json`), or given as a file or folder. Without one, prompts are lists of
    tokens. `data` is one or several `.ptd` files. `chunk` is how many tokens of a prompt run at once. With the option
    `cache="f16"` or `"q8"`, long contexts are faster and take less memory. `draft` is a smaller model of the same
    vocabulary, whose tokens this one verifies; then speculation is "auto" by default (docs/generate.md).
    """

    def __init__(
        self,
        source: Openable,
        options: Loading = None,
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        chunk: int | None = None,
        draft: Openable | None = None,
        **more: Any,
    ) -> None:
        options = loading(options, more)
        opened = ProgramSource.of(source, options, LANGUAGE)
        super().__init__(opened.path, read_signature(opened.file, opened.card), tokenizer)
        self.runner = SequentialRunner(opened, self.signature, options, data=data, chunk=chunk)
        self.program, self.pictures = self.runner.program, self.runner.pictures
        self._engine = TextEngine(self.runner)
        self._batch: TextEngine | None = None  # of the same program for several sequences
        self._batch_source: Any = (opened.program, self.signature, options), data  # None: it cannot serve several
        self._lock = Lock()
        if draft is not None:
            self.speculate = "auto"
            try:
                open_draft(self, self.runner, draft, options)
            except BaseException:
                self.close()
                raise

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens that the cache holds."""
        return self.runner.cached

    def encode(self, prompt: Prompt, pictures: Sequence[Picture] = ()) -> list[int]:
        """Return the tokens of a prompt, checked. Pictures replace each `<image>` of a text, or come first."""
        if pictures:
            if not isinstance(prompt, str):
                raise InvalidInput("pictures go with a text, not with tokens")
            prompt = self._seeing().encode(prompt, pictures, self.tokenizer.encode)
        return super().encode(prompt)

    def encode_chat(self, messages: Sequence[Message], pictures: Sequence[Picture] = ()) -> list[int]:
        """Return the tokens of a conversation whose messages show these pictures."""
        if not pictures:
            return super().encode_chat(messages)
        text = self.tokenizer.chat.render(self._parts(messages))
        return super().encode(self._seeing().encode(text, pictures, self.tokenizer.encode_rendered))

    def see(self, picture: Picture) -> Picture:
        """Compute a picture's rows; used again, the picture costs nothing."""
        return self._seeing().look(picture)

    def generate(
        self,
        prompt: Prompt,
        *,
        stream: Callable[[str], object] | None = None,
        pictures: Sequence[Picture] = (),
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """Return the continuation of a prompt. `stream` is called with each piece of text as it comes."""
        if stream is None:
            handle = self.request(self.encode(prompt, pictures), options, self.runner, lookahead=LOOKAHEAD)
            return self._engine.attach(handle).wait()
        pieces = self.stream(prompt, pictures=pictures, **options)
        for text in pieces:
            stream(text)
        return pieces.generation

    def generate_batch(self, prompts: Iterable[Prompt], **options: Unpack[GenerationOptions]) -> list[Generation]:
        """Return the continuations of several prompts: at once, if the program can serve several sequences.

        That takes another program, with caches of its own on the GPU, which is loaded the first time and kept.
        """
        tokens = [self.encode(prompt) for prompt in prompts]
        engine = self._batch_engine() if len(tokens) > 1 else None
        if engine is None:
            return [self.generate(prompt, **options) for prompt in tokens]
        handles = [engine.enqueue(self.request(prompt, options, engine.runner)) for prompt in tokens]
        try:
            return [handle.wait() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def stream(
        self, prompt: Prompt, *, pictures: Sequence[Picture] = (), **options: Unpack[GenerationOptions]
    ) -> Stream:
        """Return an iterator over the text of the continuation; its `generation` has the rest."""
        return Stream(self._engine.attach(self.request(self.encode(prompt, pictures), options, self.runner)))

    def chat(self, system: str | None = None, **options: Unpack[GenerationOptions]) -> Conversation:
        """Return a conversation with the model."""
        from .chat import Conversation

        return Conversation(self, system, **options)

    def score(self, prompt: Prompt, first: int = 1) -> np.ndarray:
        """Return the log-probability of each token of `prompt`, from number `first` on, given those before it."""
        tokens = self.encode(prompt)
        if not 1 <= first <= len(tokens):
            raise InvalidInput(f"first must be from 1 to {len(tokens)}, not {first}")
        return self.runner.score(tokens, first)

    def reset(self) -> None:
        """Empty the cache."""
        self.runner.reset()

    def close(self) -> None:
        """Free the GPU memory."""
        self._engine.close()
        if self._batch is not None:
            self._batch.close()

    def _seeing(self) -> Pictures:
        if self.pictures is None:
            raise InvalidInput("this model sees no pictures: it has no method for them")
        return self.pictures

    def _batch_engine(self) -> TextEngine | None:
        """Return the engine for several sequences; None if the program cannot serve them."""
        from .paged import PagedRunner

        with self._lock:
            if self._batch is None and self._batch_source is not None:
                source, data = self._batch_source
                try:
                    runner = PagedRunner(*source, sequences=BATCH_SEQUENCES, data=data, shares=self.program)
                except UnsupportedProgram:
                    self._batch_source = None
                else:
                    self._batch = TextEngine(runner)
                    weakref.finalize(self, self._batch.close)
            return self._batch
