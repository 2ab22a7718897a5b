"""A generation: what came out, how long it took, and the stream that it comes from, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "context", "cancelled", "deadline"]


@dataclass(slots=True)
class Timings:
    """Seconds and tokens. The first token comes at the end of the prefill, so decoding makes one less than all."""

    reused_tokens: int = 0  # of the prompt, found in the cache
    prefill_tokens: int = 0  # of the prompt, computed
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Tokens per second; 0 where nothing was computed."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_rate(self) -> float:
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(slots=True)
class Generation:
    """What a prompt gave. Stop tokens are in neither `text` nor `tokens`; a stop string is in `tokens` only.

    `logprobs` are the natural logarithms of the tokens' probabilities in the model's own distribution, before
    temperature, penalty and filters. `finish_reason`: "stop" (a stop token or string), "length" (max_tokens), "context"
    (the model's context is full), "cancelled", "deadline" (of a request to a `BatchEngine`).
    """

    prompt_tokens: list[int]
    seed: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None  # None: still running
    timings: Timings = field(default_factory=Timings)


class Stream(Iterator[str]):
    """Pieces of text as they come, whole characters each; `generation` is what came so far."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.cancelled = False
        self.together = 1  # steps that the GPU is given at once; more than one where nobody waits for each token
        self._pieces: Iterator[str] = iter(())

    def start(self, pieces: Iterator[str]) -> Stream:
        """Where the pieces come from."""
        self._pieces = pieces
        return self

    def follow(self, wrap: Callable[[Iterator[str]], Iterator[str]]) -> Stream:
        """Let the pieces pass through something that watches them."""
        self._pieces = wrap(self._pieces)
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def cancel(self) -> None:
        """Stop before the next token; from any thread, or from a signal handler."""
        self.cancelled = True
