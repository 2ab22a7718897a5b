"""What a server asks of whatever runs a model: prompts in, events or vectors out. Nothing here knows of HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..models.text.batch import Finished, Piece, Served, Stats

if TYPE_CHECKING:
    import numpy as np

    from ..models.text.batch import BatchOptions

Event = Piece | Finished


class Engine(Protocol):
    """One model. All but `stream`, which belongs to an event loop, may be called from any thread."""

    @property
    def model(self) -> Served: ...

    def encode(self, prompt: str) -> list[int]: ...

    def stats(self) -> Stats: ...

    def close(self) -> None: ...


@runtime_checkable
class Writes(Engine, Protocol):
    """A language model, such as `BatchEngine`."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]: ...

    def stream(self, prompt: Sequence[int], options: BatchOptions) -> AsyncGenerator[Event, None]:
        """Pieces, then Finished; QueueFull where too many wait.

        Leaving the loop, or cancelling its task, ends the request at the next step.
        """


@runtime_checkable
class Embeds(Engine, Protocol):
    """An encoder."""

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """A row of float32 for each prompt."""
