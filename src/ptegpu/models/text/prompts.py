"""The inputs of a language model: the tokens of prompts, by its tokenizer and limits. This module uses no GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

from ...errors import InvalidInput
from ..tokenizer import Detokenizer, StopStrings, Tokenizer, find_tokenizer
from .generation import Acceptance, Generation
from .handle import Handle, Outcome
from .sampling import Sampler, Sampling
from .schedule import TextRequest
from .signature import TextSignature
from .speculation import Speculate, Speculation, Verifier, count_of

if TYPE_CHECKING:
    from ..template import Message
    from .pictures import Pictures

MAX_TOKENS = 256

Prompt = str | Sequence[int]


class PromptTooLong(InvalidInput):
    """A prompt with more tokens than the model's context holds."""


class GenerationOptions(TypedDict, total=False):
    """Options of generation; see `Sampling` for the settings that choose tokens."""

    max_tokens: int  # 256
    temperature: float  # 0: greedy
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int | None
    stop: str | Iterable[str]  # strings that end the text; not part of it
    stop_tokens: Iterable[int]  # instead of the model's own
    speculate: Speculate  # "off", "auto" or a number of proposals; see `speculation.py`


class Prompts:
    """A model's tokenizer and limits. The tokenizer is searched for when it is first needed, unless it is given.

    Close models, or use them as context managers.
    """

    def __init__(self, path: Path | None, signature: TextSignature, tokenizer: str | os.PathLike[str] | None) -> None:
        self.signature = signature
        self.pictures: Pictures | None = None  # those that the model has seen, if it can see
        self.speculate: Speculate = "off"  # unless a request says otherwise
        self.acceptance = Acceptance()  # of all requests
        self._path = path
        self._tokenizer_path = tokenizer
        self._tokenizer: Tokenizer | None = None
        if tokenizer is not None:
            self._tokenizer = find_tokenizer(path, tokenizer)

    def close(self) -> None:
        """Free the GPU memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; without one, InvalidInput names the files that were searched for."""
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
        """Return the tokens of a prompt; raise InvalidInput for no tokens, too many, or unknown ones."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(t) for t in prompt]
        vocabulary, context = self.signature.vocabulary, self.signature.context
        if not tokens:
            raise InvalidInput("the prompt is empty: give at least one token")
        end = self.pictures.end if self.pictures else vocabulary
        unknown = next((t for t in tokens if not 0 <= t < end), None)
        if unknown is not None:
            raise InvalidInput(f"token {unknown} is not in the model's vocabulary of {vocabulary}")
        if len(tokens) > context:
            raise PromptTooLong(f"the prompt has {len(tokens)} tokens, the model's context holds {context}")
        return tokens

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, up to where the model's next message begins."""
        return self.encode(self.tokenizer.encode_chat(self._parts(messages)))

    def request(
        self,
        tokens: list[int],
        options: Mapping[str, object],
        verifier: Verifier,
        *,
        deadline: float = math.inf,
        owner: str = "",
        lookahead: int = 1,
        with_bytes: bool = False,
        on_event: Callable[[Outcome], object] | None = None,
    ) -> Handle:
        """Return a request for the continuation of a checked prompt; `options` are `GenerationOptions`.

        `with_bytes` adds to each piece the bytes of its token. The `verifier` will run the request.
        """
        settings: dict[str, Any] = dict(options)
        max_tokens = settings.pop("max_tokens", MAX_TOKENS)
        if max_tokens < 0:
            raise InvalidInput(f"max_tokens must be at least 0, not {max_tokens}")
        stop, stop_tokens = settings.pop("stop", ()), settings.pop("stop_tokens", None)
        count = count_of(settings.pop("speculate", self.speculate))
        sampling = Sampling(**settings)
        vocabulary, context = self.signature.vocabulary, self.signature.context
        detokenizer = None
        if self.has_tokenizer:
            detokenizer = Detokenizer(self.tokenizer, [t for t in tokens if t < vocabulary])
        ends = self.stop_tokens if stop_tokens is None else frozenset(stop_tokens)
        sampler, generation = Sampler(sampling, vocabulary), Generation(tokens, cast(int, sampling.seed))
        request = TextRequest(tokens, max_tokens, sampler, context, ends, deadline, owner, lookahead=lookahead)
        if count != 0:
            generation.speculation = Acceptance(reason=verifier.refusal_to_verify())
            if not generation.speculation.reason:
                records = generation.speculation, self.acceptance
                request.speculation = Speculation(verifier.sources(tokens, sampling), count, records)
        stops = StopStrings([stop] if isinstance(stop, str) else stop)
        bytes_of = self.tokenizer.bytes_of if detokenizer and with_bytes else None
        return Handle(request, generation, detokenizer, stops, bytes_of, on_event)

    def _parts(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages for a template. That of a model that sees takes contents as lists of parts."""
        if self.signature.pictures is None:
            return list(messages)
        return [
            {**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m
            for m in messages
        ]
