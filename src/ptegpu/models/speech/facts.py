"""What a program for speech says about itself: sizes, special tokens, and which tokens are never chosen."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...errors import InvalidProgram

METHOD = "ptegpu_speech"  # gives these facts as JSON
VERSION = 1
MOST = 1 << 24  # of any number
LONGEST = 1 << 20  # characters of the JSON


@dataclass(frozen=True, slots=True)
class Facts:
    rate: int  # samples in a second
    hop: int  # samples from one frame to the next
    window: int  # samples of a frame
    frames: int  # that one call hears
    mels: int
    context: int  # tokens
    vocab: int
    start: int  # the token that every text begins with
    end: int  # ids below it are text
    no_timestamps: int | None = None  # the timestamp 0.00 is the next one; None: there are no timestamps
    initial: int | None = None  # the latest timestamp that a window may begin with
    no_speech: int | None = None
    languages: dict[str, int] | None = None  # None: the model knows one only
    tasks: dict[str, int] | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"version": VERSION} | asdict(self))

    @classmethod
    def from_json(cls, text: str, name: str) -> Facts:
        """Checked: InvalidProgram if they cannot be."""
        try:
            if len(text) > LONGEST:
                raise ValueError(f"they have {len(text):,} characters")
            found = json.loads(text)
            if found.pop("version", None) != VERSION:
                raise ValueError("they are of another version of ptegpu")
            if set(found) != {f.name for f in fields(cls)}:
                raise ValueError("names are missing or unknown")
            for key in ("suppressed", "suppressed_first"):
                found[key] = tuple(found[key])
            made = cls(**found)
            made._check()
            return made
        except (ValueError, TypeError, AttributeError, RecursionError) as e:
            raise InvalidProgram(f"the facts about speech are wrong: {e}", path=name) from None

    def _check(self) -> None:
        for key in ("rate", "hop", "window", "frames", "mels", "context", "vocab"):
            _check_int(key, getattr(self, key), 1, MOST)
        maps = [*(self.languages or {}).items(), *(self.tasks or {}).items()]
        if not all(isinstance(name, str) for name, _ in maps):
            raise ValueError("a name is no text")
        rare = [self.no_timestamps, self.no_speech]
        ids = [self.start, self.end, *(t for _, t in maps), *self.suppressed, *self.suppressed_first]
        for token in [*ids, *(t for t in rare if t is not None)]:
            _check_int("a token", token, 0, self.vocab - 1)
        if self.initial is not None:
            _check_int("initial", self.initial, 0, self.vocab)
        if self.frames % 2 or self.window > 2 * self.frames * self.hop or self.context < 8:
            raise ValueError("the sizes do not fit together")

    @property
    def first_timestamp(self) -> int:
        """The id of 0.00; beyond all tokens if there is none."""
        return self.vocab if self.no_timestamps is None else self.no_timestamps + 1

    @property
    def seconds(self) -> float:
        """Of a window."""
        return self.frames * self.hop / self.rate

    @property
    def precision(self) -> float:
        """Seconds from one timestamp to the next: two frames."""
        return 2 * self.hop / self.rate


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}")
