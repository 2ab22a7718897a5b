"""The card of a program: its kind, its task, its inputs and outputs, and the meaning of its tokens.

A card is JSON, the output of the method `ptegpu_card`. Files of earlier versions have the same facts in other methods,
and files of ExecuTorch in constants (`get_max_context_len`, `get_eos_ids`, …). Both are read into a card. A file may
come from a stranger, so every field is checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from ..errors import InvalidProgram, UnsupportedProgram
from ..format import FileMethod, ProgramFile
from ..plan.fields import read_value
from .kinds import KINDS, PROGRAM, SEEING, SPEECH, TASK, TEXT
from .parts import Audio, Image, Speech, Text, VisionSpec, require
from .tasks.specs import TASKS, TaskSpec
from .text.signature import ints_of, read_signature

METHOD, VERSION = "ptegpu_card", 1
MAX_CHARACTERS = 1 << 24  # of the JSON
MAX_TOKEN = 1 << 31  # upper bound of token ids and of counts of tokens

# Methods with the facts in files of earlier versions: the kind, and the part of a card that has the fields of the JSON
EARLIER: Mapping[str, tuple[str, str | None]] = {
    "ptegpu_facts": (TASK, None),  # None: they are fields of the card itself
    "ptegpu_speech": (SPEECH, "speech"),
    "ptegpu_pictures": (SEEING, "vision"),
}
# Fields of a card with the equivalent constant methods of ExecuTorch; the first method that exists counts
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "context": ("get_max_context_len", "get_max_seq_len"),
    "stop": ("get_eos_ids", "get_eos_id"),
}


@dataclass(frozen=True, slots=True)
class Card:
    """The purpose of a program. Fields that do not apply keep their defaults, which are not written."""

    kind: str  # in the table of kinds
    version: int = VERSION
    task: str | None = None  # in the table of tasks
    architecture: str = ""  # the exported class
    inputs: tuple[str, ...] = ()  # the role of each input of `forward`
    outputs: tuple[str, ...] = ()
    text: Text | None = None
    image: Image | None = None
    audio: Audio | None = None
    vision: VisionSpec | None = None  # of a language model that sees
    speech: Speech | None = None
    tokenizer: str | None = None  # the suffix of its file, beside the program
    chat_template: bool = False
    labels: tuple[str, ...] = ()
    many: bool = False  # labels do not exclude each other
    regression: bool = False  # scores are the raw outputs instead of probabilities
    blank: int = 0  # of speech by frames: the token that separates two equal tokens
    context: int | None = None  # tokens in the cache, at most
    chunk: int | None = None  # tokens in one call, at most
    stop: tuple[int, ...] = ()  # tokens that end a text
    origin: str = ""  # the exported checkpoint
    licence: str = ""

    @property
    def takes(self) -> tuple[str, ...]:
        """Return the media that the program takes: image, audio or text."""
        return tuple(name for name in ("image", "audio", "text") if getattr(self, name) is not None)

    @property
    def spec(self) -> TaskSpec:
        """Return the row of its task."""
        assert self.task is not None
        return TASKS[self.task]

    @staticmethod
    def of_task(task: str, architecture: str = "", **values: Any) -> Card:
        """Return the card of a program for a task, with the roles of its inputs and outputs."""
        card = Card(TASK, task=task, architecture=architecture, **values)
        tokens = ("tokens", "mask", "types") if card.text and card.text.types else ("tokens", "mask")
        wave = "wave" if card.audio and card.audio.features == "wave" else "spectrogram"
        roles = {"text": tokens, "image": ("pixels",), "audio": (wave,)}
        return replace(card, inputs=sum((roles[name] for name in card.takes), ()), outputs=card.spec.outputs)

    def json(self) -> str:
        """Return the JSON that `read_card` reads."""
        return json.dumps({"kind": self.kind, "version": self.version} | plain(self), allow_nan=False)

    def check(self, methods: set[str]) -> None:
        """Raise ValueError if the card is invalid for a program with these methods."""
        require(self.version == VERSION, f"version {self.version}; this ptegpu reads version {VERSION}")
        require(self.kind in KINDS, f"kind is {self.kind!r}, not one of {', '.join(KINDS)}")
        require((self.task is not None) == (self.kind == TASK), f"task is {self.task!r}, but kind is {self.kind!r}")
        require((self.speech is not None) == (self.kind == SPEECH), f"speech does not go with kind {self.kind!r}")
        require((self.vision is not None) == (self.kind == SEEING), f"vision does not go with kind {self.kind!r}")
        if self.task is not None:
            require(self.task in TASKS, f"task is {self.task!r}, not one of {', '.join(TASKS)}")
            require(self.takes == self.spec.inputs, f"{self.task} takes {' and '.join(self.spec.inputs)}")
        require(self.kind == PROGRAM or "forward" in methods, "the program has no method 'forward'")
        for part in (self.text, self.image, self.audio, self.vision, self.speech):
            if part is not None:
                part.check()
        for name, tokens in (("context", self.context), ("chunk", self.chunk)):
            require(tokens is None or 1 <= tokens < MAX_TOKEN, f"{name} is {tokens}")
        require(all(0 <= token < MAX_TOKEN for token in self.stop), f"stop has tokens out of range: {self.stop[:8]}")


def plain(value: Any) -> Any:
    """Return a card or one of its parts as JSON values, without the fields that have their defaults."""
    if is_dataclass(value):
        pairs = [(f, getattr(value, f.name)) for f in fields(value)]
        return {f.name: plain(v) for f, v in pairs if f.default is MISSING or v != f.default}
    return [plain(v) for v in value] if isinstance(value, tuple) else value


def read_card(program: ProgramFile) -> Card:
    """Return the card of a program. Raise InvalidProgram if it is invalid.

    Without a card, a program that has the shapes of a language model is one; any other has the kind "program".
    """
    methods = {m.name: m for m in program.methods}
    source = next((name for name in (METHOD, *EARLIER) if name in methods), None)
    if source is None:
        card = Card(TEXT, inputs=("tokens", "position"), outputs=("logits",), **_constants(methods))
        try:
            signature = read_signature(program, card)
        except UnsupportedProgram:
            return Card(PROGRAM)
        return replace(card, context=signature.context, chunk=signature.chunk)
    try:
        values = _read_object(methods[source])
        if source != METHOD:
            kind, part = EARLIER[source]
            values = {"version": values.pop("version", None), part: values} if part else values
            values = {"kind": kind, **values}
        card = read_value(Card, values)
        card.check(set(methods))
    except ValueError as e:
        text = str(e)
        prefix = source if text.startswith((".", " ")) else f"{source}: "
        raise InvalidProgram(f"{prefix}{text}", path=program.path) from None
    if source == METHOD:
        return card
    if card.task is not None:
        values = {f.name: getattr(card, f.name) for f in fields(Card) if f.name not in ("kind", "inputs", "outputs")}
        return Card.of_task(**values)
    return replace(card, **_constants(methods)) if card.vision else card


def _read_object(method: FileMethod) -> dict[str, Any]:
    values = [method.values[k] for k in method.outputs]
    require(len(values) == 1 and isinstance(values[0], str), "its output is not one string")
    text = str(values[0])
    require(len(text) <= MAX_CHARACTERS, f"{len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its output is not JSON") from None
    require(isinstance(value, dict), "its output is not a JSON object")
    return value  # type: ignore[no-any-return]


def _constants(methods: Mapping[str, FileMethod]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, constants in CONSTANTS.items():
        ints = next(filter(None, (ints_of(methods.get(constant)) for constant in constants)), [])
        if ints:
            values[name] = tuple(ints) if name == "stop" else ints[0]
    return values
