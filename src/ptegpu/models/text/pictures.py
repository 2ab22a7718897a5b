"""Pictures for language models that see: pixels from files, and the text around them.

A picture becomes tiles of one size, and the program turns each tile into rows that replace tokens. Rows have ids of
their own, above those of the vocabulary, and equal pictures have equal ids. So the cache is known token by token,
pictures included.
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
from ..parts import RESAMPLES, VisionSpec


class EncodedPicture(NamedTuple):
    """A picture that a model has seen: the ids of its rows, and the numbers of its tiles down and across."""

    ids: list[int]
    down: int
    across: int


Picture = str | os.PathLike[str] | np.ndarray | EncodedPicture  # a file, or uint8 (height, width, 3)


def pixels(picture: str | os.PathLike[str] | np.ndarray, vision: VisionSpec) -> tuple[np.ndarray, int, int]:
    """Return tiles, float32 (n, 3, size, size), and their numbers down and across; the last is the whole picture."""

    def resized(image: Any, width: int, height: int) -> Any:
        return image.resize((width, height), RESAMPLES.index("lanczos"))

    image = open_image(picture)
    image = resized(image, *_longest(image.width, image.height, vision.longest))
    size, down, across = vision.size, 0, 0
    tiles = []
    if vision.split:
        image = resized(image, *_multiples(image.width, image.height, size))
        if image.width > size or image.height > size:
            down, across = image.height // size, image.width // size
            corners = [(c * size, r * size) for r in range(down) for c in range(across)]
            tiles = [image.crop((x, y, x + size, y + size)) for x, y in corners]
    tiles.append(resized(image, size, size))
    values = np.stack([np.asarray(tile, np.float32) for tile in tiles]) / np.float32(255)  # (n, size, size, 3)
    scaled = (values - np.array(vision.mean, np.float32)) / np.array(vision.std, np.float32)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32), down, across


def _longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return sides of which the longer one is `longest`, and the other one is even."""
    shorter = int(longest / (max(width, height) / min(width, height)))
    shorter = max(shorter + shorter % 2, 1)
    return (longest, shorter) if width >= height else (shorter, longest)


def _multiples(width: int, height: int, size: int) -> tuple[int, int]:
    """Return sides that are multiples of a tile's side; the longer one is rounded first."""
    longer = math.ceil(max(width, height) / size) * size
    shorter = int(longer / (width / height)) if width >= height else int(longer * (width / height))
    shorter = math.ceil(shorter / size) * size
    return (longer, shorter) if width >= height else (shorter, longer)


class Pictures:
    """The rows of all pictures that a model has seen, by their ids, from `first` on."""

    def __init__(self, vision: VisionSpec, first: int, see: Callable[[np.ndarray], np.ndarray]) -> None:
        self.vision, self.first, self._see = vision, first, see
        self.rows = np.zeros((0, vision.dim), np.float32)
        self._offsets: dict[bytes, int] = {}  # digest of a tile → its first row
        self.none = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, vision.dim), np.float32)  # for one token

    @property
    def end(self) -> int:
        """The id after the last one."""
        return self.first + len(self.rows)

    def look(self, picture: Picture) -> EncodedPicture:
        """Return a picture's ids; compute its rows if they are new."""
        if isinstance(picture, EncodedPicture):
            return picture
        tiles, down, across = pixels(picture, self.vision)
        ids: list[int] = []
        for tile in tiles:
            key = hashlib.sha256(tile.tobytes()).digest()
            if key not in self._offsets:
                rows = self._see(tile[None])
                if not np.isfinite(rows).all():
                    raise InvalidInput("the model gives no finite numbers for this picture")
                self._offsets[key] = len(self.rows)
                self.rows = np.concatenate([self.rows, rows])
            start = self.first + self._offsets[key]
            ids += range(start, start + self.vision.rows)
        return EncodedPicture(ids, down, across)

    def encode(self, text: str, pictures: Sequence[Picture], encode: Callable[[str], list[int]]) -> list[int]:
        """Return the tokens of a text whose marks are pictures; without marks, pictures come first."""
        vision, mark = self.vision, self.vision.mark
        if mark not in text:
            text = mark * len(pictures) + text
        expanded, *parts = text.split(mark)
        if len(parts) != len(pictures):
            raise InvalidInput(f"the prompt has {len(parts)} × {mark}, and there are {len(pictures)} pictures")
        ids: list[int] = []
        for picture, part in zip(pictures, parts, strict=True):
            encoded = self.look(picture)
            ids += encoded.ids
            expanded += vision.text(encoded.down, encoded.across) + part
        tokens = encode(expanded)
        positions = [k for k, token in enumerate(tokens) if token == vision.token]
        if len(positions) != len(ids):
            raise InvalidInput(f"the tokenizer makes {len(positions)} tokens of {len(ids)} × {mark}")
        for position, row in zip(positions, ids, strict=True):
            tokens[position] = row
        return tokens

    def arguments(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return inputs for ids (1, S): tokens, 1 where a token counts, float32 (1, S, 1), and rows (1, S, dim)."""
        is_token = ids < self.first
        rows = np.zeros((*ids.shape, self.vision.dim), np.float32)
        rows[~is_token] = self.rows[ids[~is_token] - self.first]
        tokens = np.where(is_token, ids, ids.dtype.type(self.vision.token))
        return tokens, is_token[..., None].astype(np.float32), rows
