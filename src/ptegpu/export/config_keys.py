"""Checked access to the values of a `config.json`: every error names the file and the key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ExportError, PtegpuError
from ..files import read_object
from .transformer import ACTIVATIONS

LARGEST = (1 << 31) - 1  # of sizes
MOST_LAYERS, MOST_HEADS, MOST_EXPERTS = 1 << 12, 1 << 14, 1 << 12


class ConfigKeys:
    """The values of a config by its own keys, and the fields read so far by our names: `keys["heads"]`."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self.values = path, values
        self.fields: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value unchecked; `default` if it is missing or null."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None, most: int = LARGEST) -> int:
        value = self.get(key, default)
        if value is None:
            raise self.error(f"{key} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.error(f"invalid {key} {value!r}: expected an integer from 1 to {most:,}")
        return value

    def number(self, key: str, default: float) -> float:
        return self.positive(key, self.get(key, default))

    def cap(self, key: str, default: float | None = None) -> float | None:
        """Return a positive number, or None for null."""
        value = self.values.get(key, default)
        return None if value is None else self.positive(key, value)

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self.get(key, default))

    def activation(self, key: str, value: Any) -> str:
        """Return the name of a supported activation function."""
        if value not in ACTIVATIONS:
            raise self.error(f"{key} {value!r} is not supported; supported are {', '.join(ACTIVATIONS)}")
        return str(value)

    def positive(self, key: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(f"invalid {key} {value!r}: expected a positive number")
        return float(value)

    def error(self, text: str) -> ExportError:
        return ExportError(f"{self.path}: {text}")


@contextmanager
def interpreting(path: Path) -> Iterator[None]:
    """Raise ExportError for values of an unexpected type, instead of the Python error that they cause."""
    try:
        yield
    except PtegpuError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as e:
        raise ExportError(f"{path} cannot be understood: {e}") from None


def read_optional(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if there is no such file."""
    return read_object(path, ExportError) if path.is_file() else {}
