"""A conversation: messages in the model's own chat format, the cache kept from turn to turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Unpack

from .generation import Generation, Stream

if TYPE_CHECKING:
    from .model import LanguageModel, Options


class Conversation:
    """Turns with a model; `options` hold for every turn, and a turn may give others.

    Each turn renders all `messages` again, so the result is that of a fresh model; only what the cache lacks is run.
    """

    def __init__(self, model: LanguageModel, system: str | None = None, **options: Unpack[Options]) -> None:
        self.model, self.options = model, options
        assert model.tokenizer.chat
        self.messages: list[dict[str, str]] = []
        self._system = system
        self.reset()

    def say(
        self, text: str, *, stream: Callable[[str], object] | None = None, **options: Unpack[Options]
    ) -> Generation:
        """One turn: the model's answer. `stream` is called with each piece of it as it comes."""
        pieces = self.stream(text, **options)
        for piece in pieces:
            if stream is not None:
                stream(piece)
        return pieces.generation

    def stream(self, text: str, **options: Unpack[Options]) -> Stream:
        """One turn as an iterator; what was said so far counts as the answer if it is cancelled or left."""
        asked = [*self.messages, {"role": "user", "content": text}]
        tokens = self.model.encode(self.model.tokenizer.encode_chat(asked))
        inner = self.model.stream(tokens, **(self.options | options))
        return inner.follow(self._answer(inner.generation, asked))

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def _answer(self, made: Generation, asked: list[dict[str, str]]) -> Callable[[Iterator[str]], Iterator[str]]:
        def pieces(source: Iterator[str]) -> Iterator[str]:
            try:
                yield from source
            finally:
                self.messages = [*asked, {"role": "assistant", "content": made.text}]

        return pieces
