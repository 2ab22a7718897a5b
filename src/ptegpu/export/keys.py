"""Values from a `config.json`, each of the kind that is asked for, or an error that names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ExportError

LARGEST = (1 << 31) - 1  # of sizes


class Keys:
    """What a config says, by its keys, and what was made of it so far, by our names: `keys["heads"]`."""

    def __init__(self, path: Path, given: Mapping[str, Any]) -> None:
        self.path, self.given = path, given
        self.found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def get(self, key: str, default: Any = None) -> Any:
        """As it is; `default` where there is none, or null."""
        value = self.given.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None, most: int = LARGEST) -> int:
        value = self.get(key, default)
        if value is None:
            raise self.error(f"{key} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.error(f"{key} is {value!r}, not a positive number up to {most:,}")
        return value

    def number(self, key: str, default: float) -> float:
        return self.positive(key, self.get(key, default))

    def cap(self, key: str, default: float | None = None) -> float | None:
        """A number that may be null."""
        value = self.given.get(key, default)
        return None if value is None else self.positive(key, value)

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.get(key, default))

    def positive(self, key: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(f"{key} is {value!r}, not a positive number")
        return float(value)

    def error(self, text: str) -> ExportError:
        return ExportError(f"{self.path}: {text}")
