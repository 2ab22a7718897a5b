"""The library of WGSL functions in `functions.wgsl`. A module includes only the functions that it needs."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def _library() -> dict[str, str]:
    text = Path(__file__).with_name("functions.wgsl").read_text(encoding="utf-8")
    return {m[1]: block for block in text.split("\n\n") if (m := re.search(r"^fn (\w+)", block, re.MULTILINE))}


def functions(text: str) -> str:
    """Return the WGSL of every library function that `text` calls, directly or through another."""
    library, needed = _library(), dict[str, str]()
    pending = [text]
    while pending:
        for name in re.findall(r"\b(\w+)\(", pending.pop()):
            if name in library and name not in needed:
                needed[name] = library[name]
                pending.append(library[name])
    return "\n".join(needed.values())
