"""The result of a prompt: text, tokens, the reason for its end, and timings, and what became of proposed tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "context", "cancelled", "deadline"]


@dataclass(slots=True)
class Timings:
    """Seconds and tokens. The prefill gives the first token, so decoding gives one token less than all."""

    reused_tokens: int = 0  # of the prompt, found in the cache
    prefill_tokens: int = 0  # of the prompt, computed
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Tokens per second; 0 if nothing was computed."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_rate(self) -> float:
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(slots=True)
class Acceptance:
    """Proposed tokens of speculative decoding, and those that were accepted."""

    runs: int = 0  # that verified proposals
    proposed: int = 0
    accepted: int = 0
    reason: str = ""  # why the model verifies none

    def add(self, proposed: int, accepted: int) -> None:
        """Count a run."""
        self.runs, self.proposed, self.accepted = self.runs + 1, self.proposed + proposed, self.accepted + accepted

    @property
    def rate(self) -> float:
        """The share of the proposed tokens that was accepted; 0 if none was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0


@dataclass(slots=True)
class Generation:
    """The result of a prompt. Stop tokens are in neither `text` nor `tokens`; a stop string is in `tokens` only.

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
    speculation: Acceptance | None = None  # None: it was off
