"""API keys. They are compared in constant time, stored as hashes and never shown."""

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


class ApiKeys:
    """The accepted keys. Without any, every request is accepted."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._hashes = [_hash(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def owner(self, header: str | None) -> str | None:
        """Return a name for the key in an Authorization header; None for a wrong key, in the same time."""
        if not self._hashes:
            return ""
        scheme, _, key = (header or "").partition(" ")
        digest = _hash(key.strip())
        matches = [hmac.compare_digest(digest, accepted) for accepted in self._hashes]
        return digest.hex()[:16] if scheme.lower() == "bearer" and any(matches) else None


def read_keys(path: Path | None = None) -> ApiKeys:
    """Read the keys of a file, one on each line, and of the environment, separated by spaces or commas."""
    lines = read_text(path, InvalidInput).splitlines() if path else []
    file_keys = [text for line in lines if (text := line.strip()) and not text.startswith("#")]
    if path and not file_keys:
        raise InvalidInput(f"{path} has no keys: write one on each line, or leave --keys out")
    environment_keys = os.environ.get(VARIABLE, "").replace(",", " ").split()
    for source, keys in ((path, file_keys), (VARIABLE, environment_keys)):
        if any(len(key) < SHORTEST or not key.isascii() or len(key.split()) > 1 for key in keys):
            expected = f"{SHORTEST} or more ASCII characters without a space"
            raise InvalidInput(f"a key in {source} is not {expected}: `openssl rand -hex 24` makes one")
    return ApiKeys([*file_keys, *environment_keys])


def _hash(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
