"""What the outputs of a program mean: one function for each kind of result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidInput
from ..media import enlarged, largest_class

if TYPE_CHECKING:
    from ..card import Card
    from ..tokenizer import Tokenizer

LONGEST_ANSWER = 30  # tokens
SILENT = ("<pad>", "<s>", "</s>", "<unk>", "[PAD]", "[UNK]")  # tokens of speech that are not written
SPACE = "|"  # between words, in speech


@dataclass(frozen=True, slots=True)
class Label:
    """A class, or a word to fill in, with its probability; of a regression, an output with its value."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Span:
    """A token of a text with its label."""

    text: str
    label: str
    score: float
    start: int  # characters
    end: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of a text that answers a question."""

    text: str
    score: float
    start: int  # characters
    end: int


@dataclass(frozen=True, slots=True)
class Row:
    """What a program gave for one input, and that input."""

    outputs: Sequence[np.ndarray]
    card: Card
    top: int = 5  # labels
    tokenizer: Tokenizer | None = None
    encoding: Any = None  # of a text
    text: str = ""
    context: str = ""
    size: tuple[int, int] = (0, 0)  # height and width of a picture
    names: Sequence[str] = ()  # of the classes, in place of the card's

    def name(self, k: int) -> str:
        """Return the name of a class."""
        names = self.names or self.card.labels
        return names[k] if k < len(names) else f"class {k}"


def array(row: Row) -> np.ndarray:
    """Return the output as it is."""
    return row.outputs[0]


def vectors(row: Row) -> np.ndarray:
    """Return the vectors of the tokens, without those of the padding."""
    return row.outputs[0][: len(row.encoding.ids)]


def labels(row: Row) -> list[Label]:
    """Return the likeliest classes."""
    logits = row.outputs[0]
    if row.card.regression:
        parts = logits
    else:
        parts = 1 / (1 + np.exp(-logits.astype(np.float64))) if row.card.many else softmax(logits)
    order = np.argsort(-parts, kind="stable")[: row.top]
    return [Label(row.name(int(k)), float(parts[k])) for k in order]


def spans(row: Row) -> list[Span]:
    """Return a label for each token."""
    e = row.encoding
    parts = softmax(row.outputs[0][: len(e.ids)])
    found = []
    for k, (special, (start, end)) in enumerate(zip(e.special_tokens_mask, e.offsets)):
        if not special:
            best = int(parts[k].argmax())
            found.append(Span(row.text[start:end], row.name(best), float(parts[k, best]), start, end))
    return found


def answer(row: Row) -> Answer:
    """Return the tokens of the context between which the sum of logits is the largest."""
    inside = np.array([s == 1 for s in row.encoding.sequence_ids])
    if not inside.any():
        raise InvalidInput("the question leaves no room for the context")
    n = len(inside)
    first, last = (softmax(np.where(inside, y[:n], -np.inf)) for y in row.outputs)
    score = np.triu(first[:, None] * last[None]) - np.triu(np.outer(first, last), LONGEST_ANSWER)
    i, j = np.unravel_index(score.argmax(), score.shape)
    start, end = row.encoding.offsets[i][0], row.encoding.offsets[j][1]
    return Answer(row.context[start:end], float(score[i, j]), start, end)


def words(row: Row) -> list[Label]:
    """Return the likeliest words in place of the mask."""
    tokenizer, mask = row.tokenizer, row.card.text.mask if row.card.text else None
    assert tokenizer is not None
    at = [k for k, token in enumerate(row.encoding.ids) if token == mask]
    if len(at) != 1:
        shown = tokenizer.decode_token(mask or 0)
        raise InvalidInput(f"there are {len(at)} masks in the text; write {shown} once, for the word to fill in")
    parts = softmax(row.outputs[0][at[0]])
    order = [int(k) for k in np.argsort(-parts, kind="stable")[: row.top]]
    return [Label(tokenizer.decode([k]).strip() or tokenizer.decode_token(k), float(parts[k])) for k in order]


def segments(row: Row) -> np.ndarray:
    """Return the likeliest class of each pixel, int32 (height, width)."""
    return largest_class(row.outputs[0], *row.size)


def depths(row: Row) -> np.ndarray:
    """Return the depth of each pixel, float32 (height, width)."""
    (y,) = row.outputs
    return enlarged(y.reshape(1, *y.shape[-2:]), *row.size)[0]


def spoken(row: Row) -> str:
    """Return the likeliest token of each frame, without repetitions and blanks, as a text."""
    best = row.outputs[0].argmax(-1)
    kept = [int(t) for k, t in enumerate(best) if t != row.card.blank and (k == 0 or t != best[k - 1])]
    written = (t for t in map(row.name, kept) if t not in SILENT)
    return " ".join("".join(" " if t == SPACE else t for t in written).split())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities over the last dimension."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
