"""Pictures for language models that see: pixels from files, and text around them.

A picture becomes tiles of one size, each of which the program turns into rows that stand in place of tokens. Rows are
kept under ids of their own, above those of the vocabulary, so that equal pictures have equal ids: what the cache holds
is known token by token, pictures included.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import InvalidInput
from ..media import open_image
from ..parts import RESAMPLES, Vision


class Look(NamedTuple):
    """A picture that a model has seen: the ids of its rows, and how many tiles it has down and across."""

    ids: list[int]
    down: int
    across: int


Picture = str | os.PathLike[str] | np.ndarray | Look  # a file, or uint8 (height, width, 3)


def pixels(picture: str | os.PathLike[str] | np.ndarray, facts: Vision) -> tuple[np.ndarray, int, int]:
    """A picture as tiles float32 (n, 3, size, size), and how many there are down and across; the last is the whole."""
    image = open_image(picture)
    image = _resized(image, *_longest(image.width, image.height, facts.longest))
    size, down, across = facts.size, 0, 0
    tiles = []
    if facts.split:
        image = _resized(image, *_multiples(image.width, image.height, size))
        if image.width > size or image.height > size:
            down, across = image.height // size, image.width // size
            corners = [(c * size, r * size) for r in range(down) for c in range(across)]
            tiles = [image.crop((x, y, x + size, y + size)) for x, y in corners]
    tiles.append(_resized(image, size, size))
    values = np.stack([np.asarray(tile, np.float32) for tile in tiles]) / np.float32(255)  # (n, size, size, 3)
    scaled = (values - np.array(facts.mean, np.float32)) / np.array(facts.std, np.float32)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32), down, across


def _longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """The longer side becomes `longest`, the other one even."""
    shorter = int(longest / (max(width, height) / min(width, height)))
    shorter = max(shorter + shorter % 2, 1)
    return (longest, shorter) if width >= height else (shorter, longest)


def _multiples(width: int, height: int, size: int) -> tuple[int, int]:
    """Both sides become multiples of a tile's, the longer one first."""
    longer = math.ceil(max(width, height) / size) * size
    shorter = int(longer / (width / height)) if width >= height else int(longer * (width / height))
    shorter = math.ceil(shorter / size) * size
    return (longer, shorter) if width >= height else (shorter, longer)


def _resized(image: Any, width: int, height: int) -> Any:
    return image.resize((width, height), RESAMPLES.index("lanczos"))


class Pictures:
    """The rows of all pictures that a model has seen, by their ids: `first` and above."""

    def __init__(self, facts: Vision, first: int, see: Callable[[np.ndarray], np.ndarray]) -> None:
        self.facts, self.first, self._see = facts, first, see
        self.rows = np.zeros((0, facts.dim), np.float32)
        self._known: dict[bytes, int] = {}  # tiles: where their rows begin
        self.none = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, facts.dim), np.float32)  # for one token

    @property
    def end(self) -> int:
        """The first id that is not known."""
        return self.first + len(self.rows)

    def look(self, picture: Picture) -> Look:
        """A picture's rows, which are computed if they are new."""
        if isinstance(picture, Look):
            return picture
        tiles, down, across = pixels(picture, self.facts)
        found: list[int] = []
        for tile in tiles:
            key = hashlib.sha256(tile.tobytes()).digest()
            if key not in self._known:
                rows = self._see(tile[None])
                if not np.isfinite(rows).all():
                    raise InvalidInput("the model gives no finite numbers for this picture")
                self._known[key] = len(self.rows)
                self.rows = np.concatenate([self.rows, rows])
            start = self.first + self._known[key]
            found += range(start, start + self.facts.rows)
        return Look(found, down, across)

    def encode(self, text: str, pictures: Sequence[Picture], encode: Callable[[str], list[int]]) -> list[int]:
        """The tokens of a text in which each mark is a picture; without marks, pictures come first."""
        f = self.facts
        if f.mark not in text:
            text = f.mark * len(pictures) + text
        parts = text.split(f.mark)
        if len(parts) != len(pictures) + 1:
            raise InvalidInput(f"the prompt has {len(parts) - 1} × {f.mark}, and there are {len(pictures)} pictures")
        seen: list[int] = []
        whole = parts[0]
        for picture, part in zip(pictures, parts[1:], strict=True):
            ids, down, across = self.look(picture)
            seen += ids
            whole += f.text(down, across) + part
        tokens = encode(whole)
        places = [k for k, token in enumerate(tokens) if token == f.token]
        if len(places) != len(seen):
            raise InvalidInput(f"the tokenizer makes {len(places)} tokens of {len(seen)} × {f.mark}")
        for place, row in zip(places, seen, strict=True):
            tokens[place] = row
        return tokens

    def arguments(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of ids (1, S): tokens, which of them count, float32 (1, S, 1), and rows in place of others (1, S, dim)."""
        kept = tokens < self.first
        rows = np.zeros((*tokens.shape, self.facts.dim), np.float32)
        rows[~kept] = self.rows[tokens[~kept] - self.first]
        return np.where(kept, tokens, tokens.dtype.type(self.facts.token)), kept[..., None].astype(np.float32), rows
