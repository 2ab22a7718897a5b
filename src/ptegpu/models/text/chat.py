"""A conversation: messages in the model's own chat format, with the cache kept from turn to turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from .generation import Generation
from .handle import Stream
from .pictures import Picture

if TYPE_CHECKING:
    from .model import LanguageModel
    from .prompts import GenerationOptions


class Conversation:
    """Turns with a model. `options` apply to every turn, and a turn may override them.

    Each turn renders all `messages` again, so the result is that of a fresh model; only what the cache lacks is run.
    """

    def __init__(self, model: LanguageModel, system: str | None = None, **options: Unpack[GenerationOptions]) -> None:
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
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """Take one turn and return the model's answer. `stream` is called with each piece of it as it comes."""
        pieces = self.stream(text, pictures=pictures, **options)
        for piece in pieces:
            if stream is not None:
                stream(piece)
        return pieces.generation

    def stream(self, text: str, *, pictures: Sequence[Picture] = (), **options: Unpack[GenerationOptions]) -> Stream:
        """Take one turn as an iterator. If it is cancelled or left, the answer ends there."""
        content: Any = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}] if pictures else text
        messages = [*self.messages, {"role": "user", "content": content}]
        all_pictures = [*self.pictures, *(self.model.see(picture) for picture in pictures)]
        tokens = self.model.encode_chat(messages, all_pictures)
        stream = self.model.stream(tokens, **(self.options | options))

        def record() -> None:
            self.messages = [*messages, {"role": "assistant", "content": stream.generation.text}]
            self.pictures = all_pictures

        return stream.at_end(record)

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        self.pictures = []
