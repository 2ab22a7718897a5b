"""What a server asks of whatever runs a model: prompts in, events out. Nothing here knows of HTTP or of a GPU."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from ..llm.model import Options

Reason = Literal["stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a token adds to the text: nothing yet, where a character or a stop string may still be completed.

    Text that was held back to the end belongs to no token.
    """

    text: str
    token: int | None = None
    logprob: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a stream, with what was counted."""

    reason: Reason
    prompt_tokens: int
    tokens: int
    cached_tokens: int = 0  # of the prompt, found in pages that others left


Event = Piece | Finished


@dataclass(frozen=True, slots=True)
class Facts:
    """About a model, as it was loaded."""

    name: str
    context: int  # tokens
    vocabulary: int
    has_chat: bool = False
    generates: bool = True  # else it embeds
    sequences: int = 1  # requests that run at once


@dataclass(frozen=True, slots=True)
class Stats:
    """An engine as it is now."""

    queue: int = 0
    running: int = 0
    batch: int = 0  # rows of the latest run
    tokens_per_second: float = 0.0
    pages_used: int = 0
    pages_total: int = 0
    error: str = ""  # why it can run nothing more


class Busy(Exception):
    """The engine's own queue is full."""


class Engine(Protocol):
    """One model. Its methods may be called from any thread but `stream`, which belongs to an event loop."""

    @property
    def model(self) -> Facts: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]: ...

    def stream(self, prompt: Sequence[int], options: Options) -> AsyncGenerator[Event, None]:
        """Pieces, then Finished; Busy where too many wait.

        Leaving the loop, or cancelling its task, ends the request at the next step.
        """

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """A row of float32 for each prompt; for models that do not generate."""

    def stats(self) -> Stats: ...

    def close(self) -> None: ...
