"""The entry of a tiny model in the table of the zoo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Specimen:
    """A tiny model with random weights."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]  # of a call
    write: Callable[[Path], object] | None = None  # writes it as a folder of the Hub; None: it has no such folder
