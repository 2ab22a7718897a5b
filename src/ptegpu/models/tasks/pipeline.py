"""The pipeline of a task: from a text, a picture or a sound to a result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import InvalidInput
from ...runtime import open_program
from ..door import Loading, Openable, ProgramSource, loading
from ..kinds import TASK
from ..media import open_image, pixels, sound
from ..tokenizer import find_tokenizer
from .results import TaskOutput

METHOD = "forward"


class Pipeline:
    """A program for a task, from media to results. Close it, or use it as a context manager.

    `source` is a `.pte` or bundle of `ptegpu export hf`, or a checkpoint folder, which is exported once and kept in the
    cache. `options` are `LoadOptions`, or a device; `more` are their fields by name. If the task needs a tokenizer, the
    default is the one beside the program. `data` is one or several `.ptd` files.
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
        opened = ProgramSource.of(source, options, (TASK,))
        opened.check_kind(TASK)
        self.card = opened.card
        self.tokenizer = find_tokenizer(opened.path, tokenizer) if self.card.text is not None else None
        self.program = open_program(opened.program, options, data, methods=[METHOD])
        self._forward = self.program.method(METHOD)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the memory."""
        self.program.close()

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.card.labels

    def __call__(
        self,
        value: Any = None,
        *,
        text: Any = None,
        image: Any = None,
        audio: Any = None,
        context: str | None = None,
        rate: int | None = None,
        top: int = 5,
    ) -> Any:
        """Return the result for a text, a picture (a file, an array of uint8 or a Pillow image), or a sound (a .wav
        file, or samples at `rate`). For a list of texts or pictures, return a list.

        Classes are a list of the `top` likeliest `Label`s, tokens a list of `Span`s, and speech is a `str`. A question
        about a `context` has an `Answer`. Other results are arrays: features, embeddings, classes or depths of pixels.
        """
        media = self.card.takes
        named = {"text": text, "image": image, "audio": audio}
        if value is not None:
            named[media[0]] = value
        for name, medium in named.items():
            if (medium is not None) != (name in media):
                raise InvalidInput(f"this program is for {self.card.task}: it takes {' and '.join(media)}")
        if len(media) == 2:
            return self._compare(named["image"], named["text"], top)
        if media == ("audio",):
            assert self.card.audio is not None
            outputs = self._run(sound(named["audio"], self.card.audio, rate)[0][None])
            return self._result(0, outputs, top=top)
        value = named[media[0]]
        is_list = isinstance(value, list | tuple)
        items = list(value) if is_list else [value]
        size = (self.card.text or self.card.image).batch  # type: ignore[union-attr]
        results: list[Any] = []
        for k in range(0, len(items), size):
            batch = items[k : k + size]
            results += self._read_texts(batch, context, top) if media == ("text",) else self._read_images(batch, top)
        return results if is_list else results[0]

    def _result(self, k: int, outputs: Sequence[np.ndarray], **facts: Any) -> Any:
        """Return the result for input `k` of a batch."""
        return self.card.spec.read(TaskOutput([y[k] for y in outputs], self.card, **facts))

    def _read_texts(self, texts: Sequence[str], context: str | None, top: int) -> list[Any]:
        if (context is not None) != self.card.spec.context:
            needs = "a context to answer from" if context is None else "no context"
            raise InvalidInput(f"{self.card.task} takes {needs}")
        encodings, inputs = self._encode(texts, context)
        outputs = self._run(*inputs)
        facts: dict[str, Any] = {"top": top, "tokenizer": self.tokenizer, "context": context or ""}
        return [self._result(k, outputs, encoding=e, text=texts[k], **facts) for k, e in enumerate(encodings)]

    def _encode(self, texts: Sequence[str], context: str | None = None) -> tuple[list[Any], list[np.ndarray]]:
        """Return encodings, and the inputs, int64 (texts, longest): tokens, a mask and, if the model has any, types."""
        facts = self.card.text
        assert facts is not None and self.tokenizer is not None
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"a text is a str, not {type(text).__name__}")
        encodings = [self.tokenizer.encode_pair(text, context, facts.length) for text in texts]
        longest = facts.length if facts.fixed else max(1, *(len(e.ids) for e in encodings))
        tokens = np.full((len(texts), longest), facts.pad, np.int64)
        mask, types = np.zeros_like(tokens), np.zeros_like(tokens)
        for row, e in enumerate(encodings):
            tokens[row, : len(e.ids)] = e.ids
            types[row, : len(e.ids)] = e.type_ids
            mask[row, : len(e.ids)] = 1
        if not facts.masked:
            mask[:] = 1
        return encodings, [tokens, mask, types] if facts.types else [tokens, mask]

    def _read_images(self, pictures: Sequence[Any], top: int) -> list[Any]:
        facts = self.card.image
        assert facts is not None
        images = [open_image(picture, facts.channels) for picture in pictures]
        outputs = self._run(np.stack([pixels(image, facts) for image in images]))
        sizes = [(image.height, image.width) for image in images]
        return [self._result(k, outputs, top=top, size=size) for k, size in enumerate(sizes)]

    def _compare(self, picture: Any, texts: Any, top: int) -> Any:
        """Return the texts as labels of a picture, best description first."""
        image, text = self.card.image, self.card.text
        assert image is not None and text is not None
        names = list(texts) if isinstance(texts, list | tuple) else [texts]
        scores: list[np.ndarray] = []
        values = pixels(picture, image)[None]
        for k in range(0, len(names), text.batch):
            scores.append(self._run(values, *self._encode(names[k : k + text.batch])[1])[0][0])
        return self._result(0, [np.concatenate(scores)[None]], top=max(top, len(names)), names=names)

    def _run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        outputs = [np.asarray(y) for y in self._forward.execute(inputs)]
        return [y.astype(np.float32) if y.dtype == np.float16 else y for y in outputs]


def pipeline(
    path: Openable, device: Loading = None, *, tokenizer: str | os.PathLike[str] | None = None, **options: Any
) -> Pipeline:
    """Open a program for a task, made by `ptegpu export hf`, or a checkpoint folder.

    `tokenizer` is a file or a folder; the default is the one beside the program. `options` are those of `ptegpu.load`.
    """
    return Pipeline(path, device, tokenizer, **options)
