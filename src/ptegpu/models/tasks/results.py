"""Results of tasks: one function per kind of result, which interprets the outputs of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidInput
from ..media import largest_class, resized

if TYPE_CHECKING:
    from ..card import Card
    from ..tokenizer import Tokenizer

LONGEST_ANSWER = 30  # tokens
SILENT = ("<pad>", "<s>", "</s>", "<unk>", "[PAD]", "[UNK]")  # tokens of speech without a text
SPACE = "|"  # the token between words of speech


@dataclass(frozen=True, slots=True)
class Label:
    """A class or a word to fill in with its probability, or an output of a regression with its value."""

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
class TaskOutput:
    """The outputs of a program for one input, and facts about that input."""

    outputs: Sequence[np.ndarray]
    card: Card
    top: int = 5  # labels
    tokenizer: Tokenizer | None = None
    encoding: Any = None  # of the text
    text: str = ""
    context: str = ""
    size: tuple[int, int] = (0, 0)  # height and width of the picture
    names: Sequence[str] = ()  # of the classes; empty: the labels of the card

    def name(self, k: int) -> str:
        """Return the name of a class."""
        names = self.names or self.card.labels
        return names[k] if k < len(names) else f"class {k}"


def array(output: TaskOutput) -> np.ndarray:
    """Return the first output unchanged."""
    return output.outputs[0]


def vectors(output: TaskOutput) -> np.ndarray:
    """Return the vectors of the tokens, without padding."""
    return output.outputs[0][: len(output.encoding.ids)]


def labels(output: TaskOutput) -> list[Label]:
    """Return the likeliest classes."""
    logits = output.outputs[0]
    if output.card.regression:
        scores = logits
    else:
        scores = 1 / (1 + np.exp(-logits.astype(np.float64))) if output.card.many else softmax(logits)
    return [Label(output.name(k), float(scores[k])) for k in likeliest(scores, output.top)]


def spans(output: TaskOutput) -> list[Span]:
    """Return a label for each token."""
    encoding = output.encoding
    scores = softmax(output.outputs[0][: len(encoding.ids)])
    results = []
    for row, special, (start, end) in zip(scores, encoding.special_tokens_mask, encoding.offsets):
        if not special:
            best = int(row.argmax())
            results.append(Span(output.text[start:end], output.name(best), float(row[best]), start, end))
    return results


def answer(output: TaskOutput) -> Answer:
    """Return the span of the context with the likeliest first and last token."""
    inside = np.array([s == 1 for s in output.encoding.sequence_ids])
    if not inside.any():
        raise InvalidInput("the question leaves no room for the context")
    n = len(inside)
    first, last = (softmax(np.where(inside, y[:n], -np.inf)) for y in output.outputs)
    score = np.triu(first[:, None] * last[None]) - np.triu(np.outer(first, last), LONGEST_ANSWER)
    i, j = np.unravel_index(score.argmax(), score.shape)
    start, end = output.encoding.offsets[i][0], output.encoding.offsets[j][1]
    return Answer(output.context[start:end], float(score[i, j]), start, end)


def words(output: TaskOutput) -> list[Label]:
    """Return the likeliest words in place of the mask."""
    tokenizer, mask = output.tokenizer, output.card.text.mask if output.card.text else None
    assert tokenizer is not None
    positions = [k for k, token in enumerate(output.encoding.ids) if token == mask]
    if len(positions) != 1:
        name = tokenizer.decode_token(mask or 0)
        raise InvalidInput(f"there are {len(positions)} masks in the text; write {name} once, for the word to fill in")
    scores = softmax(output.outputs[0][positions[0]])
    texts = {k: tokenizer.decode([k]).strip() or tokenizer.decode_token(k) for k in likeliest(scores, output.top)}
    return [Label(text, float(scores[k])) for k, text in texts.items()]


def segments(output: TaskOutput) -> np.ndarray:
    """Return the likeliest class of each pixel, int32 (height, width)."""
    return largest_class(output.outputs[0], *output.size)


def depths(output: TaskOutput) -> np.ndarray:
    """Return the depth of each pixel, float32 (height, width)."""
    (y,) = output.outputs
    return resized(y.reshape(1, *y.shape[-2:]), *output.size)[0]


def spoken(output: TaskOutput) -> str:
    """Return the text of the likeliest tokens of the frames, without repetitions and blanks."""
    best = output.outputs[0].argmax(-1)
    tokens = [int(t) for k, t in enumerate(best) if t != output.card.blank and (k == 0 or t != best[k - 1])]
    texts = (t for t in map(output.name, tokens) if t not in SILENT)
    return " ".join("".join(" " if t == SPACE else t for t in texts).split())


def likeliest(scores: np.ndarray, count: int) -> list[int]:
    """Return the indices of the highest scores, highest first."""
    return [int(k) for k in np.argsort(-scores, kind="stable")[:count]]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities over the last dimension."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
