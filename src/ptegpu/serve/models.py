"""From a file to an engine: a language model for many requests, or an encoder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedProgram, quoted
from ..models.text.batch import BatchEngine
from ..models.text.signature import signature_of
from ..models.tokenizer import check_tokenizer
from .encoder import Encoder

if TYPE_CHECKING:
    from .engine import Engine


def open_model(
    path: Path,
    name: str,
    tokenizer: Path | None,
    many: dict[str, Any],
    how: dict[str, Any],
    progress: Any,
    *,
    prepare: bool = False,
) -> Engine:
    """A language model, with `many` of `BatchEngine`, or an encoder, whichever the program is.

    With `prepare`, whatever a request may need is compiled first: none waits for that later.
    """
    try:
        signature_of(path)
    except UnsupportedProgram as reason:
        try:
            return Encoder(path, name, tokenizer, progress=progress, **how)
        except UnsupportedProgram as other:
            raise UnsupportedProgram(*quoted(f"{path} cannot be served: {reason}; ", other)) from None
    check_tokenizer(path, tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `alone` says it, too
        opened = BatchEngine(path, tokenizer=tokenizer, queue=None, progress=progress, **many, **how)
    try:
        assert opened.tokenizer
        if prepare:
            opened.prepare()
    except BaseException:
        opened.close()
        raise
    return opened
