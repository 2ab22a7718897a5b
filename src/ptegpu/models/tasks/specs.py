"""The table of tasks: inputs and outputs, the classes of transformers for each, and how its result is drawn.

A new task is a row here, and a function in `results.py` if its outputs need a new interpretation. Nothing else knows
the name of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import results
from .results import TaskOutput

Input = Literal["image", "audio", "text"]
Drawn = Literal["labels", "spans", "answer", "words", "text", "segments", "depths", "embedding", "array"]

SENTENCES, ZERO_SHOT = "sentence-embedding", "zero-shot-image-classification"


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
        ("text",), "", "array", results.vectors, ("last_hidden_state",), suffixes=("ForPreTraining", "Model")
    ),
    SENTENCES: TaskSpec(("text",), "", "embedding", results.array, ("last_hidden_state",)),
    "text-classification": TaskSpec(
        ("text",), "ForSequenceClassification", "labels", results.labels, named=True, types=True
    ),
    "token-classification": TaskSpec(("text",), "ForTokenClassification", "spans", results.spans, named=True),
    "question-answering": TaskSpec(
        ("text",),
        "ForQuestionAnswering",
        "answer",
        results.answer,
        ("start_logits", "end_logits"),
        context=True,
        types=True,
    ),
    "fill-mask": TaskSpec(("text",), "ForMaskedLM", "words", results.words, masked=True),
    "image-feature-extraction": TaskSpec(
        ("image",), "", "array", results.array, ("last_hidden_state",), suffixes=("ForMaskedImageModeling", "Model")
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
        ("audio",), "", "array", results.array, ("last_hidden_state",), suffixes=("ForPreTraining", "Model")
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


def task_of(architecture: str, takes: str) -> str | None:
    """Return the task of a class by its name and the kind of its input, or None for a class without a task."""
    for task, spec in TASKS.items():
        if spec.inputs == (takes,) and architecture.endswith(spec.endings):
            return task
    return None
