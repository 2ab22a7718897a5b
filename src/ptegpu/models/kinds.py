"""The table of kinds: how a program of each kind is opened, planned, exported, shown and served.

Functions are named as "module:function": some are in packages above this one, and none is imported before it is needed.
A new kind is a row here, and a file with the functions that the row names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ExportError
from ..files import read_object

TEXT, SEEING, SPEECH, TASK, PROGRAM = "text", "vision-language", "speech", "task", "program"
LANGUAGE = (TEXT, SEEING)

DECODERS = ("ForCausalLM", "LMHeadModel")  # suffixes of the classes that generate text
SEEING_TYPES = ("smolvlm", "idefics3")  # model types of language models that see
SPEECH_TYPE = "whisper"
SENTENCES = "modules.json"  # lists the parts of a sentence-transformers model


@dataclass(frozen=True, slots=True)
class Additions:
    """Sizes and methods that a kind adds to the plans of its programs."""

    points: Mapping[str, Sequence[Mapping[str, int]]] = field(default_factory=dict)  # sizes by method
    also: Mapping[str, tuple[str, Callable[..., None]]] = field(default_factory=dict)  # new name → method, tail


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A row of the table."""

    noun: str
    opener: str  # (source, options, **more) → the model
    page: str  # of a site; it shows the program unless the program lacks something that the page needs
    plans: str | None = None  # (file, card) → the `Additions` of `ptegpu.compile`
    exporter: str | None = None  # (folder, path, progress=…) writes the program of a checkpoint
    command: str = ""  # that makes such a program
    endpoint: str | None = None  # (source, options, **more) → an engine of `ptegpu serve`; None: it is not served


_WRITER = KindSpec(
    "a language model",
    opener="ptegpu.models.text.model:LanguageModel",
    page="chat",
    plans="ptegpu.models.text.compiling:plans",
    exporter="ptegpu.export:export_llm",
    command="ptegpu export llm",
    endpoint="ptegpu.serve.models:open_writer",
)
KINDS: Mapping[str, KindSpec] = {
    TEXT: _WRITER,
    SEEING: replace(_WRITER, noun="a language model that sees"),
    SPEECH: KindSpec(
        "a program for speech",
        opener="ptegpu.models.speech.model:SpeechModel",
        page="any",
        exporter="ptegpu.export:export_speech",
        command="ptegpu export speech",
    ),
    TASK: KindSpec(
        "a program for a task",
        opener="ptegpu.models.tasks.pipeline:Pipeline",
        page="task",
        plans="ptegpu.models.tasks.specs:plans",
        exporter="ptegpu.export:export_hf",
        command="ptegpu export hf",
        endpoint="ptegpu.serve.models:open_encoder",
    ),
    PROGRAM: KindSpec(
        "a program that does not say what it is for",
        opener="ptegpu.models.door:open_plain",
        page="image",
        command="ptegpu export torch",
        endpoint="ptegpu.serve.models:open_encoder",
    ),
}
SERVED = tuple(name for name, row in KINDS.items() if row.endpoint is not None)


def resolve(name: str) -> Callable[..., Any]:
    """Import the function or class named "module:name"."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)  # type: ignore[no-any-return]


def architecture(settings: Mapping[str, Any]) -> str:
    """Return the class named in `config.json`, or an empty string."""
    names = settings.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def kind_of_folder(folder: Path) -> str:
    """Return the kind of program that a checkpoint folder is exported to, judged by its `config.json` alone."""
    if (folder / SENTENCES).is_file():
        return TASK
    settings = read_object(folder / "config.json", ExportError)
    if settings.get("model_type") == SPEECH_TYPE:
        return SPEECH
    if settings.get("model_type") in SEEING_TYPES:
        return SEEING
    return TEXT if architecture(settings).endswith(DECODERS) else TASK
