"""The interface between a server and its engines: prompts in, events or vectors out. Nothing here knows HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..models.text.batch import Finished, Piece, Served
from ..models.text.engine import Stats

if TYPE_CHECKING:
    import numpy as np

    from ..models.text.batch import BatchOptions

Event = Piece | Finished


class Engine(Protocol):
    """One model. Methods may be called from any thread, except `stream`, which belongs to an event loop."""

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
        """Yield pieces, then Finished; raise QueueFull if too many requests wait.

        Leaving the loop, or cancelling its task, ends the request at the next step.
        """


@runtime_checkable
class Embeds(Engine, Protocol):
    """An encoder."""

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return a row of float32 for each prompt."""
