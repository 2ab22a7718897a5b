"""The callback for the progress of long work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], object]  # phase, amount done, total


def silent(_what: str, _done: int, _of: int) -> None:
    """Report nothing."""
