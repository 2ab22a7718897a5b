"""A program that says what it is for, from a text, a picture or a sound to an answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import InvalidInput
from ...runtime import open_program
from ..door import Loading, Openable, Source, loading
from ..kinds import TASK
from ..media import open_image, pixels, sound
from ..tokenizer import find_tokenizer
from .results import Row

METHOD = "forward"


class Pipeline:
    """A program that takes what it is for, and gives what it says of it. Close it, or use it as a context manager.

    `source` is a `.pte` or bundle of `ptegpu export hf`, or a checkpoint folder, which is exported once and kept in the
    cache. `options` are `LoadOptions`, or a device; `more` are fields of them by name. A tokenizer is looked for beside
    the program, where one is needed. `data` is one or several `.ptd` files.
    """

    def __init__(
        self,
        source: Openable,
        options: Loading = None,
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        **more: Any,
    ) -> None:
        options = loading(options, more)
        found = Source.of(source, options, (TASK,))
        found.check_kind(TASK)
        self.card = found.card
        self.tokenizer = find_tokenizer(found.path, tokenizer) if self.card.text is not None else None
        self.program = open_program(found.program, options, data, methods=[METHOD])
        self._forward = self.program.method(METHOD)

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
        return self.card.labels

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
        takes = self.card.takes
        named = {"text": text, "image": image, "audio": audio}
        if given is not None:
            named[takes[0]] = given
        for name, value in named.items():
            if (value is not None) != (name in takes):
                raise InvalidInput(f"this program is for {self.card.task}: it takes {' and '.join(takes)}")
        if len(takes) == 2:
            return self._compared(named["image"], named["text"], top)
        if takes == ("audio",):
            assert self.card.audio is not None
            outputs = self._run(sound(named["audio"], self.card.audio, rate)[0][None])
            return self._result(0, outputs, top=top)
        value = named[takes[0]]
        several = isinstance(value, list | tuple)
        items = list(value) if several else [value]
        most = (self.card.text or self.card.image).batch  # type: ignore[union-attr]
        found: list[Any] = []
        for k in range(0, len(items), most):
            some = items[k : k + most]
            found += self._read(some, context, top) if takes == ("text",) else self._seen(some, top)
        return found if several else found[0]

    def _result(self, k: int, outputs: Sequence[np.ndarray], **about: Any) -> Any:
        """Return what the outputs say of input `k`."""
        return self.card.spec.read(Row([y[k] for y in outputs], self.card, **about))

    def _read(self, texts: Sequence[str], context: str | None, top: int) -> list[Any]:
        if (context is not None) != self.card.spec.context:
            needs = "a context to answer from" if context is None else "no context"
            raise InvalidInput(f"{self.card.task} takes {needs}")
        encoded, inputs = self._encoded(texts, context)
        outputs = self._run(*inputs)
        about: dict[str, Any] = {"top": top, "tokenizer": self.tokenizer, "context": context or ""}
        return [self._result(k, outputs, encoding=e, text=texts[k], **about) for k, e in enumerate(encoded)]

    def _encoded(self, texts: Sequence[str], context: str | None = None) -> tuple[list[Any], list[np.ndarray]]:
        """Encodings, and the inputs: tokens, mask and, where there are any, types, int64 (texts, longest)."""
        facts = self.card.text
        assert facts is not None and self.tokenizer is not None
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"a text is a str, not {type(text).__name__}")
        encoded = [self.tokenizer.encode_pair(text, context, facts.length) for text in texts]
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
        facts = self.card.image
        assert facts is not None
        opened = [open_image(picture, facts.channels) for picture in pictures]
        outputs = self._run(np.stack([pixels(picture, facts) for picture in opened]))
        sizes = [(picture.height, picture.width) for picture in opened]
        return [self._result(k, outputs, top=top, size=size) for k, size in enumerate(sizes)]

    def _compared(self, picture: Any, texts: Any, top: int) -> Any:
        """Return the texts by how well they describe a picture."""
        image, text = self.card.image, self.card.text
        assert image is not None and text is not None
        given = list(texts) if isinstance(texts, list | tuple) else [texts]
        scores: list[np.ndarray] = []
        seen = pixels(picture, image)[None]
        for k in range(0, len(given), text.batch):
            scores.append(self._run(seen, *self._encoded(given[k : k + text.batch])[1])[0][0])
        return self._result(0, [np.concatenate(scores)[None]], top=max(top, len(given)), names=given)

    def _run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        found = [np.asarray(y) for y in self._forward.execute(inputs)]
        return [y.astype(np.float32) if y.dtype == np.float16 else y for y in found]


def pipeline(
    path: Openable, device: Loading = None, *, tokenizer: str | os.PathLike[str] | None = None, **options: Any
) -> Pipeline:
    """Open a program that `ptegpu export hf` made, or a checkpoint folder: for texts, pictures or sounds.

    `tokenizer` is a file or a folder, if it is not beside the program; `options` are those of `ptegpu.load`.
    """
    return Pipeline(path, device, tokenizer, **options)
