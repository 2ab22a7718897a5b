"""A conversation: messages in the model's own chat format, the cache kept from turn to turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from .generation import Generation, Stream
from .pictures import Picture

if TYPE_CHECKING:
    from .model import LanguageModel, Options


class Conversation:
    """Turns with a model; `options` hold for every turn, and a turn may give others.

    Each turn renders all `messages` again, so the result is that of a fresh model; only what the cache lacks is run.
    """

    def __init__(self, model: LanguageModel, system: str | None = None, **options: Unpack[Options]) -> None:
        self.model, self.options = model, options
        assert model.tokenizer.chat
        self.messages: list[dict[str, Any]] = []
        self.pictures: list[Picture] = []  # of all messages
        self._system = system
        self.reset()

    def say(
        self,
        text: str,
        *,
        stream: Callable[[str], object] | None = None,
        pictures: Sequence[Picture] = (),
        **options: Unpack[Options],
    ) -> Generation:
        """One turn: the model's answer. `stream` is called with each piece of it as it comes."""
        pieces = self.stream(text, pictures=pictures, **options)
        for piece in pieces:
            if stream is not None:
                stream(piece)
        return pieces.generation

    def stream(self, text: str, *, pictures: Sequence[Picture] = (), **options: Unpack[Options]) -> Stream:
        """One turn as an iterator; what was said so far counts as the answer if it is cancelled or left."""
        content: Any = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}] if pictures else text
        asked = [*self.messages, {"role": "user", "content": content}]
        seen = [*self.pictures, *(self.model.see(picture) for picture in pictures)]
        tokens = self.model.encode_chat(asked, seen)
        inner = self.model.stream(tokens, **(self.options | options))
        return inner.follow(self._answer(inner.generation, asked, seen))

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        self.pictures = []

    def _answer(
        self, made: Generation, asked: list[dict[str, Any]], seen: list[Picture]
    ) -> Callable[[Iterator[str]], Iterator[str]]:
        def pieces(source: Iterator[str]) -> Iterator[str]:
            try:
                yield from source
            finally:
                self.messages = [*asked, {"role": "assistant", "content": made.text}]
                self.pictures = seen

        return pieces
