"""The table of tasks: inputs and outputs, the classes of transformers for each, and how its result is drawn.

A new task is a row here, and a function in `results.py` if its outputs need a new interpretation. Nothing else knows
the name of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..kinds import Additions
from . import results
from .results import TaskOutput

if TYPE_CHECKING:
    from ...format import ProgramFile
    from ..card import Card

Input = Literal["image", "audio", "text"]
Drawn = Literal["labels", "spans", "answer", "words", "text", "segments", "depths", "embedding", "array"]

SENTENCES, ZERO_SHOT = "sentence-embedding", "zero-shot-image-classification"
HIDDEN, ANSWER_OUTPUTS = ("last_hidden_state",), ("start_logits", "end_logits")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A row of the table."""

    inputs: tuple[Input, ...]  # in the order of the inputs of `forward`
    head: str  # the suffix of a class of transformers for the task; "": the class has no head
    drawn: Drawn  # how the result is shown
    read: Callable[[TaskOutput], Any]  # returns the result for the outputs
    outputs: tuple[str, ...] = ("logits",)  # names of the model's outputs
    suffixes: tuple[str, ...] = ()  # of more classes of transformers
    named: bool = False  # config.json has names of classes
    context: bool = False  # the text is a question about another one, the context
    types: bool = False  # takes the types of tokens, if the model has several
    masked: bool = False  # a token of the text is to be filled in; a call takes one text

    @property
    def auto(self) -> str:
        """Return the class of transformers that loads the model."""
        return f"AutoModel{self.head}"

    @property
    def endings(self) -> tuple[str, ...]:
        """Return the suffixes of all classes of transformers for the task."""
        return (self.head, *self.suffixes) if self.head else self.suffixes

    @property
    def draws(self) -> bool:
        """Return whether the result is a picture of the input's size."""
        return self.drawn in ("segments", "depths")


TASKS: Mapping[str, TaskSpec] = {
    "feature-extraction": TaskSpec(
        ("text",), "", "array", results.vectors, HIDDEN, suffixes=("ForPreTraining", "Model")
    ),
    SENTENCES: TaskSpec(("text",), "", "embedding", results.array, HIDDEN),
    "text-classification": TaskSpec(
        ("text",), "ForSequenceClassification", "labels", results.labels, named=True, types=True
    ),
    "token-classification": TaskSpec(("text",), "ForTokenClassification", "spans", results.spans, named=True),
    "question-answering": TaskSpec(
        ("text",), "ForQuestionAnswering", "answer", results.answer, ANSWER_OUTPUTS, context=True, types=True
    ),
    "fill-mask": TaskSpec(("text",), "ForMaskedLM", "words", results.words, masked=True),
    "image-feature-extraction": TaskSpec(
        ("image",), "", "array", results.array, HIDDEN, suffixes=("ForMaskedImageModeling", "Model")
    ),
    "image-classification": TaskSpec(
        ("image",),
        "ForImageClassification",
        "labels",
        results.labels,
        suffixes=("ForImageClassificationWithTeacher",),
        named=True,
    ),
    "image-segmentation": TaskSpec(("image",), "ForSemanticSegmentation", "segments", results.segments, named=True),
    "depth-estimation": TaskSpec(("image",), "ForDepthEstimation", "depths", results.depths, ("predicted_depth",)),
    "audio-feature-extraction": TaskSpec(
        ("audio",), "", "array", results.array, HIDDEN, suffixes=("ForPreTraining", "Model")
    ),
    "audio-classification": TaskSpec(
        ("audio",),
        "ForAudioClassification",
        "labels",
        results.labels,
        suffixes=("ForSequenceClassification",),
        named=True,
    ),
    "speech-recognition": TaskSpec(("audio",), "ForCTC", "text", results.spoken),
    ZERO_SHOT: TaskSpec(("image", "text"), "ForZeroShotImageClassification", "labels", results.labels),
}


def task_of(architecture: str, medium: str) -> str | None:
    """Return the task of a class by its name and the kind of its input, or None for a class without a task."""
    for task, spec in TASKS.items():
        if spec.inputs == (medium,) and architecture.endswith(spec.endings):
            return task
    return None


def points_of(card: Card, batches: Sequence[int] | None = None) -> list[dict[str, int]]:
    """Return combinations of input sizes, in addition to the maximum; `batches` restricts the batch sizes."""
    points: list[dict[str, int]] = [{}]
    text, audio = card.text, card.audio
    if text is not None:
        first = int(card.image is not None)  # a picture is input 0
        inputs = range(first, first + (3 if text.types else 2))
        lengths = [text.length] if text.fixed else range(1, text.length + 1)
        for batch in batches or range(1, text.batch + 1):
            points += [{f"input {k}[{d}]": n for k in inputs for d, n in enumerate((batch, m))} for m in lengths]
    elif audio is not None and audio.features == "wave":
        points += [{"input 0[1]": n} for n in range(audio.least, audio.most + 1, max(audio.step, audio.most // 4096))]
    elif card.image is not None:
        points += [{"input 0[0]": batch} for batch in batches or range(1, card.image.batch + 1)]
    return points


def plans(_: ProgramFile, card: Card) -> Additions:
    """Return the sizes of a program for a task as additions to its plans."""
    return Additions({"forward": points_of(card)})
