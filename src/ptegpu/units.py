"""Numbers formatted for people: bytes, counts, seconds, shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence


def size(nbytes: int) -> str:
    """Format a number of bytes: 12 bytes, 3.4 kB, 5.6 MB, 7.8 GB."""
    if nbytes < 1000:
        return f"{nbytes} bytes"
    power = min(int(math.log10(nbytes)) // 3, 4)
    return f"{nbytes / 1000**power:.3g} {'_kMGT'[power]}B"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: 1 plan, 2 plans."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """Format a duration: 45 µs, 6.7 ms, 8.9 s."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def dims(shape: Sequence[int]) -> str:
    """Format a shape: 1×3×8×8, or "scalar"."""
    return "×".join(map(str, shape)) or "scalar"


def number(value: float) -> str:
    """Format a number with four digits, enough to recognise a value."""
    return f"{value:.4g}"
