"""Sizes for which programs for tasks are planned."""

from __future__ import annotations

from collections.abc import Sequence

from ...format import Program
from ..card import Card
from ..kinds import Additions

METHOD = "forward"


def points_of(card: Card, batches: Sequence[int] | None = None) -> list[dict[str, int]]:
    """Return combinations of input sizes, in addition to the maximum; `batches` restricts the batch sizes."""
    points: list[dict[str, int]] = [{}]
    text, audio = card.text, card.audio
    if text is not None:
        first = int(card.image is not None)  # a picture is input 0
        inputs = range(first, first + (3 if text.types else 2))
        lengths = [text.length] if text.fixed else range(1, text.length + 1)
        for batch in batches or range(1, text.batch + 1):
            points += [{f"input {k}[{d}]": n for k in inputs for d, n in enumerate((batch, m))} for m in lengths]
    elif audio is not None and audio.features == "wave":
        points += [{"input 0[1]": n} for n in range(audio.least, audio.most + 1, max(audio.step, audio.most // 4096))]
    elif card.image is not None:
        points += [{"input 0[0]": batch} for batch in batches or range(1, card.image.batch + 1)]
    return points


def plans(_: Program, card: Card) -> Additions:
    """Return the sizes of a program for a task as additions to its plans."""
    return Additions({METHOD: points_of(card)})
