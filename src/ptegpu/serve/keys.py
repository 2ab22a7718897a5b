"""API keys: who may ask. Compared in constant time, kept as hashes, never shown."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from ..errors import InvalidInput
from ..files import read_text

VARIABLE = "PTEGPU_API_KEYS"
SHORTEST = 16  # characters


class Keys:
    """The keys that are accepted; none at all: everyone is."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [_hash(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def owner(self, header: str | None) -> str | None:
        """A name for the key that an Authorization header carries; None for a wrong one, which takes as long."""
        if not self._hashes:
            return ""
        scheme, _, key = (header or "").partition(" ")
        given = _hash(key.strip())
        found = [hmac.compare_digest(given, known) for known in self._hashes]
        return given.hex()[:16] if scheme.lower() == "bearer" and any(found) else None


def read_keys(path: Path | None = None) -> Keys:
    """The keys of a file, one on each line, and of the environment, with spaces or commas between them."""
    lines = read_text(path, InvalidInput).splitlines() if path else []
    of_file = [text for line in lines if (text := line.strip()) and not text.startswith("#")]
    if path and not of_file:
        raise InvalidInput(f"{path} has no keys: write one on each line, or leave --keys out")
    of_environment = os.environ.get(VARIABLE, "").replace(",", " ").split()
    for source, keys in ((path, of_file), (VARIABLE, of_environment)):
        if any(len(key) < SHORTEST or not key.isascii() or len(key.split()) > 1 for key in keys):
            wanted = f"{SHORTEST} or more ASCII characters without a space"
            raise InvalidInput(f"a key in {source} is not {wanted}: `openssl rand -hex 24` makes one")
    return Keys([*of_file, *of_environment])


def _hash(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
