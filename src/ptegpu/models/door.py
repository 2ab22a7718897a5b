"""The door: whatever holds a program, read and verified once, and opened as the model that it is for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from ..errors import InvalidInput, UnsupportedProgram
from ..format import Program as File
from ..gpu import Device
from ..limits import Budget
from ..plan import Bundle, find_bundle
from ..runtime import LoadOptions, Program, open_program
from .card import Card, read_card
from .checkpoints import is_checkpoint, program_of
from .kinds import KINDS, resolve

Openable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Bundle | File | Source"
Loading: TypeAlias = "LoadOptions | Device | str | int | None"


def loading(options: Loading, more: Mapping[str, Any]) -> LoadOptions:
    """Return options for loading: given as such, as a device, or by name."""
    if isinstance(options, LoadOptions):
        return replace(options, **more)
    return LoadOptions(**more) if options is None else LoadOptions(options, **more)


def split_options(options: Loading, more: dict[str, Any]) -> LoadOptions:
    """Return options for loading, with those of `more` that are among them; the others stay there."""
    names = [name for name in more if name in LoadOptions.__dataclass_fields__]
    return loading(options, {name: more.pop(name) for name in names})


@dataclass(frozen=True, eq=False, slots=True)
class Source:
    """A program that was read and verified, with its card; what every model is opened from."""

    file: File
    card: Card
    bundle: Bundle | None = None
    path: Path | None = None  # of the program, beside which its tokenizer is; None: it comes from memory

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.file.path or "the program"

    @property
    def program(self) -> File | Bundle:
        """What `ptegpu.load` and `ptegpu.compile` take."""
        return self.bundle or self.file

    @staticmethod
    def of(
        source: Openable, options: LoadOptions | None = None, kinds: Sequence[str] = (), work: str = "loading it"
    ) -> Source:
        """Read a program: a file, a bundle, bytes, or a checkpoint folder, which is exported first and kept.

        A folder of a kind that is not in `kinds` is refused by its `config.json` alone. Errors of
        limits name the `work`.
        """
        if isinstance(source, Source):
            return source
        options = options or LoadOptions()
        if is_checkpoint(source):
            source = program_of(source, options.progress, kinds)
        path = Path(source) if isinstance(source, str | os.PathLike) else None
        with Budget(options.limits).spending(work):
            bundle = source if isinstance(source, Bundle) else find_bundle(source)
            file = bundle.file if bundle else _read(source)
            return Source(file, read_card(file), bundle, path)

    def check_kind(self, *kinds: str) -> None:
        """Raise UnsupportedProgram unless the program is of one of these kinds."""
        if self.card.kind not in kinds:
            noun, wanted = KINDS[self.card.kind].noun, KINDS[kinds[0]]
            raise UnsupportedProgram(f"{self.name} is {noun}, not {wanted.noun}; make one with `{wanted.command}`")


def open(
    source: Openable, options: Loading = None, *, tokenizer: str | os.PathLike[str] | None = None, **more: Any
) -> Any:
    """Open a program as what it is for: a `LanguageModel`, a `SpeechModel`, a `Pipeline`, or else a `Program`.

    `source` is a `.pte`, a bundle, the bytes of either, or the folder of a Hugging Face checkpoint, which is exported
    once and kept in the cache. It is read and verified once. `options` are `LoadOptions`, or a device; `more` are their
    fields by name, or arguments of the model. The tokenizer is looked for beside the program, unless it is given.
    Close the model, or use it as a context manager.
    """
    chosen = split_options(options, more)
    found = Source.of(source, chosen)
    opener = resolve(KINDS[found.card.kind].opener)
    own = signature(open_program if opener is open_plain else opener).parameters.keys() - {"source", "options", "more"}
    if unknown := [name for name in more if name not in own]:
        names = ", ".join(sorted({"tokenizer", *own, *LoadOptions.__dataclass_fields__}))
        raise InvalidInput(f"unknown option {unknown[0]!r}; options are {names}")
    return opener(found, chosen, tokenizer=tokenizer, **more)


def _read(source: Any) -> File:
    """Return the program in a file or in bytes. The compiler, which a bundle does without, is imported now."""
    from ..compiler import read_source

    return read_source(source)


def open_plain(source: Source, options: LoadOptions, tokenizer: object = None, **more: Any) -> Program:
    """Return a program on a device; it needs no tokenizer."""
    return open_program(source.program, options, **more)
