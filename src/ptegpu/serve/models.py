"""Opening files as engines: a language model for many requests, or an encoder, by the table of kinds."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UnsupportedProgram, quoted
from ..models.door import ProgramSource
from ..models.kinds import KINDS, resolve
from ..models.text.batch import BatchEngine
from ..models.text.signature import read_signature
from ..models.text.speculation import Speculate
from ..models.tokenizer import find_files
from ..progress import Progress, silent
from .encoder import EmbeddingEngine

if TYPE_CHECKING:
    from ..runtime import LoadOptions
    from .engine import Engine


class EngineLimits(NamedTuple):
    """The limits of a language model that serves."""

    sequences: int = 64  # requests that run at once
    memory: int | None = None  # upper bound for caches, in bytes; None: what the requests can use
    speculate: Speculate | None = None  # None: off, or auto with a draft model
    draft: Path | None = None  # a smaller model that proposes tokens


def open_model(
    path: str | os.PathLike[str],
    name: str,
    options: LoadOptions,
    tokenizer: Path | None = None,
    room: EngineLimits = EngineLimits(),  # noqa: B008  (frozen)
    progress: Progress = silent,
    *,
    prepare: bool = False,
) -> Engine:
    """Open a language model or an encoder; raise UnsupportedProgram for other programs.

    With `prepare`, whatever a request may need is compiled first, so that no request waits for it.
    """
    options = replace(options, progress=progress)
    source = ProgramSource.of(path, options)
    opener = KINDS[source.card.kind].endpoint
    if opener is None:
        raise UnsupportedProgram(f"{path} cannot be served: it is {KINDS[source.card.kind].noun}")
    open_engine: Callable[..., Engine] = resolve(opener)
    return open_engine(source, name, options, tokenizer, room, prepare)


def open_writer(
    source: ProgramSource, name: str, options: LoadOptions, tokenizer: Any, room: EngineLimits, prepare: bool
) -> BatchEngine:
    """Open a language model for many requests."""
    find_files(source.path, tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `alone` has the reason
        opened = BatchEngine(source, options, tokenizer, queue=None, **room._asdict())
    try:
        assert opened.tokenizer
        if prepare:
            opened.prepare()
    except BaseException:
        opened.close()
        raise
    return opened


def open_encoder(
    source: ProgramSource, name: str, options: LoadOptions, tokenizer: Any, room: EngineLimits, prepare: bool
) -> EmbeddingEngine:
    """Open a program that turns texts into vectors."""
    try:
        return EmbeddingEngine(source, name, options, tokenizer)
    except UnsupportedProgram as refusal:
        try:
            read_signature(source.file, source.card)
        except UnsupportedProgram as reason:
            raise UnsupportedProgram(*quoted(f"{source.name} cannot be served: {reason}; ", refusal)) from None
        raise
