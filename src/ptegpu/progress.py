"""How long work reports its progress: what it does now, how much of that is done, and of how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], object]  # what is going on, how much is done, of how much


def silent(_what: str, _done: int, _of: int) -> None:
    """Report nothing."""
