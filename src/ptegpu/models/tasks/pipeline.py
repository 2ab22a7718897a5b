"""A program that says what it is for, from a text, a picture or a sound to an answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidInput, UnsupportedProgram
from ...format import read_program
from ...plan.bundle import Bundle
from ...plan.read import is_bundle
from ...progress import silent
from ...runtime.program import Program, load
from ..checkpoints import program_of
from ..facts import METHOD, Facts, read_facts
from ..media import enlarged, largest_class, open_image, pixels, sound
from ..tokenizer import Tokenizer, find_tokenizer

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


class Pipeline:
    """Takes what the program is for, and gives what it says of it. Closes its program as `ptegpu.Program` does."""

    def __init__(self, program: Program, facts: Facts, tokenizer: Tokenizer | None) -> None:
        self.program, self.facts, self.tokenizer = program, facts, tokenizer
        self._forward = program.method("forward")

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self.program.close()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.facts.labels

    def __call__(
        self,
        given: Any = None,
        *,
        text: Any = None,
        image: Any = None,
        audio: Any = None,
        context: str | None = None,
        rate: int | None = None,
        top: int = 5,
    ) -> Any:
        """What the program says of a text, a picture (a file, an array of uint8 or a Pillow image), or a sound (a .wav
        file, or samples at `rate`). Of a list of texts or pictures, a list.

        Classes are a list of `Label`, the `top` likeliest; tokens a list of `Span`; a question about a `context` has an
        `Answer`; speech is a `str`; all else is an array: features, an embedding, classes or depths of pixels.
        """
        takes = self.facts.takes
        named = {"text": text, "image": image, "audio": audio}
        if given is not None:
            named[takes[0]] = given
        for name, value in named.items():
            if (value is not None) != (name in takes):
                raise InvalidInput(f"this program is for {self.facts.task}: it takes {' and '.join(takes)}")
        if len(takes) == 2:
            return self._compared(named["image"], named["text"], top)
        if takes == ("audio",):
            return self._heard(named["audio"], rate, top)
        value = named[takes[0]]
        several = isinstance(value, list | tuple)
        items = list(value) if several else [value]
        most = (self.facts.text or self.facts.image).batch  # type: ignore[union-attr]
        found: list[Any] = []
        for k in range(0, len(items), most):
            some = items[k : k + most]
            found += self._read(some, context, top) if takes == ("text",) else self._seen(some, top)
        return found if several else found[0]

    def _read(self, texts: Sequence[str], context: str | None, top: int) -> list[Any]:
        task = self.facts.task
        if (context is None) == (task == "question-answering"):
            needs = "a context to answer from" if context is None else "no context"
            raise InvalidInput(f"{task} takes {needs}")
        encoded, inputs = self._encoded(texts, context)
        outputs = self._run(*inputs)
        if task == "question-answering":
            return [self._answer(e, outputs[0][k], outputs[1][k], str(context)) for k, e in enumerate(encoded)]
        found: list[Any] = []
        for k, e in enumerate(encoded):
            y = outputs[0][k]
            if task == "text-classification":
                found.append(self._labels(y, top))
            elif task == "token-classification":
                found.append(self._spans(e, y, texts[k]))
            elif task == "fill-mask":
                found.append(self._filled(e, y, top))
            else:
                found.append(y if task == "sentence-embedding" else y[: len(e.ids)])
        return found

    def _encoded(self, texts: Sequence[str], context: str | None = None) -> tuple[list[Any], list[np.ndarray]]:
        """Encodings, and the inputs: tokens, mask and, where there are any, types, int64 (texts, longest)."""
        facts = self.facts.text
        assert facts is not None and self.tokenizer is not None
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"a text is a str, not {type(text).__name__}")
        encoded = [self.tokenizer.encode_whole(text, context, facts.length) for text in texts]
        longest = facts.length if facts.fixed else max(1, *(len(e.ids) for e in encoded))
        tokens = np.full((len(texts), longest), facts.pad, np.int64)
        mask, types = np.zeros_like(tokens), np.zeros_like(tokens)
        for row, e in enumerate(encoded):
            tokens[row, : len(e.ids)] = e.ids
            types[row, : len(e.ids)] = e.type_ids
            mask[row, : len(e.ids)] = 1
        if not facts.masked:
            mask[:] = 1
        return encoded, [tokens, mask, types] if facts.types else [tokens, mask]

    def _seen(self, pictures: Sequence[Any], top: int) -> list[Any]:
        facts = self.facts.image
        assert facts is not None
        opened = [open_image(picture, facts.channels) for picture in pictures]
        (y,) = self._run(np.stack([pixels(picture, facts) for picture in opened]))
        task = self.facts.task
        if task == "image-classification":
            return [self._labels(row, top) for row in y]
        sizes = [(picture.height, picture.width) for picture in opened]
        if task == "image-segmentation":
            return [largest_class(row, *size) for row, size in zip(y, sizes)]
        if task == "depth-estimation":
            return [enlarged(row.reshape(1, *row.shape[-2:]), *size)[0] for row, size in zip(y, sizes)]
        return list(y)

    def _heard(self, source: Any, rate: int | None, top: int) -> Any:
        assert self.facts.audio is not None
        (y,) = self._run(sound(source, self.facts.audio, rate)[0][None])
        if self.facts.task == "audio-classification":
            return self._labels(y[0], top)
        return self._spoken(y[0]) if self.facts.task == "speech-recognition" else y[0]

    def _compared(self, picture: Any, texts: Any, top: int) -> list[Label]:
        """The texts by how well they describe a picture."""
        image, text = self.facts.image, self.facts.text
        assert image is not None and text is not None
        given = list(texts) if isinstance(texts, list | tuple) else [texts]
        scores: list[np.ndarray] = []
        seen = pixels(picture, image)[None]
        for k in range(0, len(given), text.batch):
            scores.append(self._run(seen, *self._encoded(given[k : k + text.batch])[1])[0][0])
        return self._labels(np.concatenate(scores), max(top, len(given)), given)

    def _run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        found = [np.asarray(y) for y in self._forward.execute(inputs)]
        return [y.astype(np.float32) if y.dtype == np.float16 else y for y in found]

    def _labels(self, logits: np.ndarray, top: int, names: Sequence[str] | None = None) -> list[Label]:
        parts = self._scores(logits)
        order = np.argsort(-parts, kind="stable")[:top]
        return [Label(names[k] if names else self._label(int(k)), float(parts[k])) for k in order]

    def _scores(self, logits: np.ndarray) -> np.ndarray:
        if self.facts.regression:
            return logits
        return 1 / (1 + np.exp(-logits.astype(np.float64))) if self.facts.many else softmax(logits)

    def _label(self, k: int) -> str:
        return self.facts.labels[k] if k < len(self.facts.labels) else f"class {k}"

    def _spans(self, e: Any, logits: np.ndarray, text: str) -> list[Span]:
        parts = softmax(logits[: len(e.ids)])
        found = []
        for k, (special, (start, end)) in enumerate(zip(e.special_tokens_mask, e.offsets)):
            if not special:
                best = int(parts[k].argmax())
                found.append(Span(text[start:end], self._label(best), float(parts[k, best]), start, end))
        return found

    def _answer(self, e: Any, starts: np.ndarray, ends: np.ndarray, context: str) -> Answer:
        """The tokens of the context between which the sum of logits is the largest."""
        inside = np.array([s == 1 for s in e.sequence_ids])
        if not inside.any():
            raise InvalidInput("the question leaves no room for the context")
        n = len(inside)
        first, last = (softmax(np.where(inside, y[:n], -np.inf)) for y in (starts, ends))
        score = np.triu(first[:, None] * last[None]) - np.triu(np.outer(first, last), LONGEST_ANSWER)
        i, j = np.unravel_index(score.argmax(), score.shape)
        start, end = e.offsets[i][0], e.offsets[j][1]
        return Answer(context[start:end], float(score[i, j]), start, end)

    def _filled(self, e: Any, logits: np.ndarray, top: int) -> list[Label]:
        assert self.facts.text is not None and self.tokenizer is not None
        at = [k for k, token in enumerate(e.ids) if token == self.facts.text.mask]
        if len(at) != 1:
            mask = self.tokenizer.decode_token(self.facts.text.mask or 0)
            raise InvalidInput(f"there are {len(at)} masks in the text; write {mask} once, for the word to fill in")
        parts = softmax(logits[at[0]])
        order = np.argsort(-parts, kind="stable")[:top]
        words = [self.tokenizer.decode([int(k)]).strip() or self.tokenizer.decode_token(int(k)) for k in order]
        return [Label(word, float(parts[k])) for word, k in zip(words, order)]

    def _spoken(self, logits: np.ndarray) -> str:
        best = logits.argmax(-1)
        kept = [int(t) for k, t in enumerate(best) if t != self.facts.blank and (k == 0 or t != best[k - 1])]
        written = (t for t in map(self._label, kept) if t not in SILENT)
        return " ".join("".join(" " if t == SPACE else t for t in written).split())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last dimension."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def pipeline(
    path: str | os.PathLike[str],
    device: Any = "auto",
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Pipeline:
    """The program of a file that `ptegpu export hf` made, or of a checkpoint folder: for texts, pictures or sounds.

    `tokenizer` is a file or a folder, if it is not beside the program; `options` are those of `ptegpu.load`.
    """
    path = program_of(path, options.get("progress") or silent)
    source: Any = Bundle.load(path) if is_bundle(Path(path)) else Path(path)
    file = source.file if isinstance(source, Bundle) else read_program(source)
    facts = read_facts(file)
    if facts is None:
        raise UnsupportedProgram(
            f"{path} does not say what it is for: it has no method {METHOD!r}, as `ptegpu export hf` writes it"
        )
    found = find_tokenizer(Path(path), tokenizer) if facts.text is not None else None
    return Pipeline(load(source, device=device, methods=["forward"], **options), facts, found)
