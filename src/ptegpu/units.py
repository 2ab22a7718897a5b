"""Numbers as people read them: bytes, counts, seconds, shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence


def size(nbytes: int) -> str:
    """12 bytes, 3.4 kB, 5.6 MB, 7.8 GB."""
    if nbytes < 1000:
        return f"{nbytes} bytes"
    power = min(int(math.log10(nbytes)) // 3, 4)
    return f"{nbytes / 1000**power:.3g} {'_kMGT'[power]}B"


def counted(count: int, noun: str) -> str:
    """1 plan, 2 plans."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """45 µs, 6.7 ms, 8.9 s."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def dims(shape: Sequence[int]) -> str:
    """1×3×8×8; a scalar has none."""
    return "×".join(map(str, shape)) or "scalar"


def number(value: float) -> str:
    """Four digits, enough to recognise a value."""
    return f"{value:.4g}"
