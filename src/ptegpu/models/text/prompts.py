"""What a language model takes: the tokens of prompts, by its tokenizer and its limits. Nothing here knows of a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ...errors import InvalidInput
from ..tokenizer import Detokenizer, StopStrings, Tokenizer, find_tokenizer
from .generation import Generation
from .signature import Signature

if TYPE_CHECKING:
    from ..template import Message

MAX_TOKENS = 256

Prompt = str | Sequence[int]


class PromptTooLong(InvalidInput):
    """A prompt with more tokens than the model's context holds."""


class Options(TypedDict, total=False):
    """How to generate; see `Sampling` for the settings that choose tokens."""

    max_tokens: int  # 256
    temperature: float  # 0: greedy
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int | None
    stop: str | Iterable[str]  # strings that end the text; not part of it
    stop_tokens: Iterable[int]  # instead of the model's own


class Prompts:
    """A model's tokenizer and limits. The tokenizer is looked for when it is first needed, unless it is given."""

    def __init__(
        self,
        path: Path | None,
        signature: Signature,
        tokenizer: str | os.PathLike[str] | None,
    ) -> None:
        self.signature = signature
        self._path = path
        self._tokenizer_path = tokenizer
        self._tokenizer: Tokenizer | None = None
        if tokenizer is not None:
            self._tokenizer = find_tokenizer(self._path, tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        """What turns text into tokens; InvalidInput, with the files looked for, if there is none."""
        if self._tokenizer is None:
            self._tokenizer = find_tokenizer(self._path, self._tokenizer_path)
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        try:
            return self.tokenizer is not None
        except InvalidInput:
            return False

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The tokens that end a text: those of the program and the tokenizer's end of sequence."""
        eos = self._tokenizer.eos if self._tokenizer is not None else None
        return frozenset((*self.signature.eos, *(() if eos is None else (eos,))))

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt, checked: there are some, the model knows them, and they fit its context."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        vocabulary, context = self.signature.vocabulary, self.signature.context
        if not tokens:
            raise InvalidInput("the prompt is empty: give at least one token")
        unknown = next((t for t in tokens if not 0 <= t < self._known()), None)
        if unknown is not None:
            raise InvalidInput(f"token {unknown} is not in the model's vocabulary of {vocabulary}")
        if len(tokens) > context:
            raise PromptTooLong(f"the prompt has {len(tokens)} tokens, the model's context holds {context}")
        return tokens

    def _known(self) -> int:
        """Ids below it can be run."""
        return self.signature.vocabulary

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the model's next message begins; checked, too."""
        return self.encode(self.tokenizer.encode_chat(self._parts(messages)))

    def _parts(self, messages: Sequence[Message]) -> list[Message]:
        """Messages as templates want them: where there may be pictures, a content is a list of parts."""
        if self.signature.pictures is None:
            return list(messages)
        text = [isinstance(m.get("content"), str) for m in messages]
        return [
            {**m, "content": [{"type": "text", "text": m["content"]}]} if plain else m
            for m, plain in zip(messages, text)
        ]

    def writer(self, made: Generation, stop: str | Iterable[str] = ()) -> Writer:
        """What makes text of a generation's tokens."""
        stops = StopStrings([stop] if isinstance(stop, str) else stop)
        if not self.has_tokenizer:
            return Writer(made, None, stops)
        detokenizer = Detokenizer(self.tokenizer, self._said(made.prompt_tokens))
        return Writer(made, detokenizer, stops, self.tokenizer.bytes_of)

    def _said(self, tokens: Sequence[int]) -> list[int]:
        """Tokens without those that stand for pictures."""
        return [t for t in tokens if t < self.signature.vocabulary]

    def ends(self, stop_tokens: Iterable[int] | None) -> frozenset[int]:
        """The tokens that end a text: those given, or the model's own."""
        return self.stop_tokens if stop_tokens is None else frozenset(stop_tokens)


class Writer:
    """Fills a generation, token by token. Without a tokenizer there is no text."""

    def __init__(
        self,
        made: Generation,
        detokenizer: Detokenizer | None,
        stops: StopStrings,
        bytes_of: Callable[[int], bytes | None] = lambda token: None,
    ) -> None:
        self._made, self._detokenizer, self._stops, self.bytes_of = made, detokenizer, stops, bytes_of

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stops.stopped

    def push(self, token: int, logprob: float) -> str:
        """The text that is certain with this token."""
        self._made.tokens.append(token)
        self._made.logprobs.append(logprob)
        return self._add(self._detokenizer.push(token)) if self._detokenizer else ""

    def finish(self) -> str:
        """What is left, as no token comes any more."""
        return self._add(self._detokenizer.finish(), last=True) if self._detokenizer else ""

    def _add(self, text: str, last: bool = False) -> str:
        text = self._stops.push(text) + (self._stops.finish() if last else "")
        self._made.text += text
        return text


def check_max_tokens(max_tokens: int) -> None:
    if max_tokens < 0:
        raise InvalidInput(f"max_tokens must be at least 0, not {max_tokens}")
