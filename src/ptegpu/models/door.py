"""The door: any source of a program, read and verified once, and opened as the right kind of model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from ..errors import InvalidInput, UnsupportedProgram
from ..format import ProgramFile as File
from ..gpu import Device
from ..limits import Budget
from ..plan import Bundle, find_bundle
from ..runtime import LoadOptions, Program, open_program
from .card import Card, read_card
from .checkpoints import exported_once, is_checkpoint
from .kinds import KINDS, resolve

Bytes: TypeAlias = "bytes | bytearray | memoryview | BinaryIO"
Openable: TypeAlias = "str | os.PathLike[str] | Bytes | Bundle | File | ProgramSource"
Loading: TypeAlias = "LoadOptions | Device | str | int | None"


def loading(options: Loading, more: Mapping[str, Any]) -> LoadOptions:
    """Return `LoadOptions` from such options or a device, and from fields by name."""
    if isinstance(options, LoadOptions):
        return replace(options, **more)
    return LoadOptions(**more) if options is None else LoadOptions(options, **more)


def split_options(options: Loading, more: dict[str, Any]) -> LoadOptions:
    """Return `LoadOptions`, with their fields taken out of `more`. Other entries of `more` stay there."""
    names = [name for name in more if name in LoadOptions.__dataclass_fields__]
    return loading(options, {name: more.pop(name) for name in names})


@dataclass(frozen=True, eq=False, slots=True)
class ProgramSource:
    """A verified program with its card, from which every model is opened."""

    file: File
    card: Card
    bundle: Bundle | None = None
    path: Path | None = None  # of the program, beside which its tokenizer is; None: a program from memory

    @property
    def name(self) -> str:
        """Return its name in messages."""
        return self.file.path or "the program"

    @property
    def program(self) -> File | Bundle:
        """Return an argument for `ptegpu.load` and `ptegpu.compile`."""
        return self.bundle or self.file

    @staticmethod
    def of(
        source: Openable, options: LoadOptions | None = None, kinds: Sequence[str] = (), work: str = "loading it"
    ) -> ProgramSource:
        """Read a program: a file, a bundle, bytes, or a checkpoint folder, which is exported once and cached.

        A folder of a kind that is not in `kinds` is refused by its `config.json` alone. Errors about limits name the
        `work`.
        """
        if isinstance(source, ProgramSource):
            return source
        options = options or LoadOptions()
        if is_checkpoint(source):
            source = exported_once(source, options.progress, kinds)
        path = Path(source) if isinstance(source, str | os.PathLike) else None
        with Budget(options.limits).spending(work):
            bundle = source if isinstance(source, Bundle) else find_bundle(source)
            if bundle is None:
                from ..compiler import read_source  # only here: opening a bundle does without the compiler

                file = read_source(source)  # type: ignore[arg-type]  # neither a bundle nor a `ProgramSource` here
            else:
                file = bundle.file
            return ProgramSource(file, read_card(file), bundle, path)

    def check_kind(self, *kinds: str) -> None:
        """Raise UnsupportedProgram unless the program is of one of these kinds."""
        if self.card.kind not in kinds:
            noun, expected = KINDS[self.card.kind].noun, KINDS[kinds[0]]
            raise UnsupportedProgram(f"{self.name} is {noun}, not {expected.noun}; make one with `{expected.command}`")


def open(
    source: Openable, options: Loading = None, *, tokenizer: str | os.PathLike[str] | None = None, **more: Any
) -> Any:
    """Open a program as the right kind of model: `LanguageModel`, `SpeechModel`, `Pipeline`, or else `Program`.

    `source` is a `.pte`, a bundle, the bytes of either, or the folder of a Hugging Face checkpoint, which is exported
    once and kept in the cache. It is read and verified once. `options` are `LoadOptions`, or a device; `more` are their
    fields by name, or arguments of the model. By default, the tokenizer is the one beside the program.
    Close the model, or use it as a context manager.
    """
    chosen = split_options(options, more)
    opened = ProgramSource.of(source, chosen)
    opener = resolve(KINDS[opened.card.kind].opener)
    own_options = signature(open_program if opener is open_plain else opener).parameters.keys() - {
        "source",
        "options",
        "more",
    }
    if unknown := [name for name in more if name not in own_options]:
        names = ", ".join(sorted({"tokenizer", *own_options, *LoadOptions.__dataclass_fields__}))
        raise InvalidInput(f"unknown option {unknown[0]!r}; options are {names}")
    return opener(opened, chosen, tokenizer=tokenizer, **more)


def open_plain(source: ProgramSource, options: LoadOptions, tokenizer: object = None, **more: Any) -> Program:
    """Return a plain program on a device. Its kind has no use for a tokenizer."""
    return open_program(source.program, options, **more)
