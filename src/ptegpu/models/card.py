"""What a program is for: its kind, its task, what it takes and gives, and what its tokens mean.

A card is JSON, the output of the method `ptegpu_card`. Files of earlier versions say the same in other methods, and
those of ExecuTorch in constants (`get_max_context_len`, `get_eos_ids`, …); both are read into a card. A file may be a
stranger's: every field is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from ..errors import InvalidProgram, UnsupportedProgram
from ..format import Method, Program
from ..plan.fields import read_value
from .kinds import KINDS, PROGRAM, SEEING, SPEECH, TASK, TEXT
from .parts import Audio, Image, Speech, Text, Vision, require
from .tasks.specs import TASKS, TaskSpec
from .text.signature import ints_of, read_signature

METHOD, VERSION = "ptegpu_card", 1
LARGEST = 1 << 24  # characters of the JSON
MOST = 1 << 31  # tokens


@dataclass(frozen=True, slots=True)
class Card:
    """What a program is for. Fields that do not apply have their defaults, and are not written."""

    kind: str  # in the table of kinds
    version: int = VERSION
    task: str | None = None  # in the table of tasks
    architecture: str = ""  # the class that was exported
    inputs: tuple[str, ...] = ()  # what each input of `forward` is
    outputs: tuple[str, ...] = ()
    text: Text | None = None
    image: Image | None = None
    audio: Audio | None = None
    vision: Vision | None = None  # of a language model that sees
    speech: Speech | None = None
    tokenizer: str | None = None  # the ending of its file, beside the program
    chat_template: bool = False
    labels: tuple[str, ...] = ()
    many: bool = False  # labels do not exclude each other
    regression: bool = False  # scores are the outputs themselves, not probabilities
    blank: int = 0  # of speech by frames: the token between two equal ones
    context: int | None = None  # tokens that are remembered
    chunk: int | None = None  # tokens in one call
    stop: tuple[int, ...] = ()  # tokens that end a text
    origin: str = ""  # the checkpoint that it was made of
    licence: str = ""

    @property
    def takes(self) -> tuple[str, ...]:
        """What it is asked with: image, audio or text."""
        return tuple(name for name in ("image", "audio", "text") if getattr(self, name) is not None)

    @property
    def spec(self) -> TaskSpec:
        """The row of its task."""
        assert self.task is not None
        return TASKS[self.task]

    @staticmethod
    def of_task(task: str, architecture: str = "", **values: Any) -> Card:
        """Return the card of a program for a task, with what its inputs and outputs are."""
        card = Card(TASK, task=task, architecture=architecture, **values)
        tokens = ("tokens", "mask", "types") if card.text and card.text.types else ("tokens", "mask")
        wave = "wave" if card.audio and card.audio.features == "wave" else "spectrogram"
        roles = {"text": tokens, "image": ("pixels",), "audio": (wave,)}
        return replace(card, inputs=sum((roles[name] for name in card.takes), ()), outputs=card.spec.outputs)

    def json(self) -> str:
        """Return the JSON that `read_card` reads."""
        return json.dumps({"kind": self.kind, "version": self.version} | plain(self), allow_nan=False)

    def check(self, methods: set[str]) -> None:
        """Raise ValueError if a program with these methods cannot have this card."""
        require(self.version == VERSION, f"version {self.version}; this ptegpu knows version {VERSION}")
        require(self.kind in KINDS, f"kind is {self.kind!r}, not one of {', '.join(KINDS)}")
        require((self.task is not None) == (self.kind == TASK), f"task is {self.task!r}, but kind is {self.kind!r}")
        require((self.speech is not None) == (self.kind == SPEECH), f"speech does not go with kind {self.kind!r}")
        require((self.vision is not None) == (self.kind == SEEING), f"vision does not go with kind {self.kind!r}")
        if self.task is not None:
            require(self.task in TASKS, f"task is {self.task!r}, not one of {', '.join(TASKS)}")
            require(self.takes == self.spec.inputs, f"{self.task} takes {' and '.join(self.spec.inputs)}")
        require(self.kind == PROGRAM or "forward" in methods, "there is no method 'forward'")
        for part in (self.text, self.image, self.audio, self.vision, self.speech):
            if part is not None:
                part.check()
        for name, tokens in (("context", self.context), ("chunk", self.chunk)):
            require(tokens is None or 1 <= tokens < MOST, f"{name} is {tokens}")
        require(all(0 <= token < MOST for token in self.stop), f"stop has tokens out of range: {self.stop[:8]}")


def plain(value: Any) -> Any:
    """Return a card or its part as JSON has it: without the fields that have their defaults."""
    if is_dataclass(value):
        pairs = [(f, getattr(value, f.name)) for f in fields(value)]
        return {f.name: plain(v) for f, v in pairs if f.default is MISSING or v != f.default}
    return [plain(v) for v in value] if isinstance(value, tuple) else value


def read_card(program: Program) -> Card:
    """Return the card of a program; InvalidProgram if it cannot be. A program without one has the kind "program"."""
    methods = {m.name: m for m in program.methods}
    written = next((name for name in (METHOD, *EARLIER) if name in methods), None)
    if written is None:
        return _undeclared(program, methods)
    try:
        values = _document(methods[written])
        if written != METHOD:
            values = EARLIER[written](values)
        card: Card = read_value(Card, values)
        card.check(set(methods))
    except ValueError as e:
        text = str(e)
        where = written if text.startswith((".", " ")) else f"{written}: "
        raise InvalidProgram(f"{where}{text}", path=program.path) from None
    if written == METHOD:
        return card
    if card.task is not None:
        known = {f.name: getattr(card, f.name) for f in fields(Card) if f.name not in ("kind", "inputs", "outputs")}
        return Card.of_task(**known)
    return replace(card, **_constants(methods)) if card.vision else card


def _document(method: Method) -> dict[str, Any]:
    values = [method.values[k] for k in method.outputs]
    require(len(values) == 1 and isinstance(values[0], str), "it does not give one text")
    text = str(values[0])
    require(len(text) <= LARGEST, f"it has {len(text):,} characters, more than {LARGEST:,}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    require(isinstance(found, dict), "it is no JSON object")
    return found  # type: ignore[no-any-return]


def _part(kind: str, name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what moves the fields of an earlier version into a part of a card."""

    def moved(values: dict[str, Any]) -> dict[str, Any]:
        part = {key: value for key, value in values.items() if key != "version"}
        return {"kind": kind, "version": values.get("version"), name: part}

    return moved


# Methods of files that earlier versions wrote, with what makes fields of a card of their JSON
EARLIER: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "ptegpu_facts": lambda values: {"kind": TASK, **values},
    "ptegpu_speech": _part(SPEECH, "speech"),
    "ptegpu_pictures": _part(SEEING, "vision"),
}
# Fields of a card, with the constant methods of ExecuTorch that say the same; the first that there is counts
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "context": ("get_max_context_len", "get_max_seq_len"),
    "stop": ("get_eos_ids", "get_eos_id"),
}


def _constants(methods: Mapping[str, Method]) -> dict[str, Any]:
    found = {}
    for name, constants in CONSTANTS.items():
        values = next(filter(None, (ints_of(methods.get(constant)) for constant in constants)), [])
        if values:
            found[name] = tuple(values) if name == "stop" else values[0]
    return found


def _undeclared(program: Program, methods: Mapping[str, Method]) -> Card:
    """Return the card of a program by the shapes of its methods."""
    card = Card(TEXT, inputs=("tokens", "position"), outputs=("logits",), **_constants(methods))
    try:
        signature = read_signature(program, card)
    except UnsupportedProgram:
        return Card(PROGRAM)
    return replace(card, context=signature.context, chunk=signature.chunk)
