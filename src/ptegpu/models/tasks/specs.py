"""The table of tasks: what each takes and gives, which models of transformers are for it, and how its result is drawn.

A new task is a row here, and a function in `results.py` where its outputs mean something new. Nothing else knows the
name of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import results
from .results import Row

Input = Literal["image", "audio", "text"]
Drawn = Literal["labels", "spans", "answer", "words", "text", "segments", "depths", "embedding", "array"]

SENTENCES, ZERO_SHOT = "sentence-embedding", "zero-shot-image-classification"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A row of the table."""

    inputs: tuple[Input, ...]  # in the order of the inputs of `forward`
    auto: str  # the class of transformers that makes the model
    drawn: Drawn  # how the result is shown
    read: Callable[[Row], Any]  # makes the result of the outputs
    suffixes: tuple[str, ...] = ()  # ends of the names of classes of transformers
    outputs: tuple[str, ...] = ("logits",)  # of what the model returns
    named: bool = False  # config.json has names of classes
    context: bool = False  # the text is a question about another one
    types: bool = False  # takes the types of tokens, where the model has several
    masked: bool = False  # a token of the text is to be filled in; texts go one by one

    @property
    def draws(self) -> bool:
        """Whether the result is a picture as large as the input."""
        return self.drawn in ("segments", "depths")


TASKS: Mapping[str, TaskSpec] = {
    "feature-extraction": TaskSpec(
        ("text",), "AutoModel", "array", results.vectors, ("ForPreTraining", "Model"), ("last_hidden_state",)
    ),
    SENTENCES: TaskSpec(("text",), "AutoModel", "embedding", results.array, outputs=("last_hidden_state",)),
    "text-classification": TaskSpec(
        ("text",),
        "AutoModelForSequenceClassification",
        "labels",
        results.labels,
        ("ForSequenceClassification",),
        named=True,
        types=True,
    ),
    "token-classification": TaskSpec(
        ("text",), "AutoModelForTokenClassification", "spans", results.spans, ("ForTokenClassification",), named=True
    ),
    "question-answering": TaskSpec(
        ("text",),
        "AutoModelForQuestionAnswering",
        "answer",
        results.answer,
        ("ForQuestionAnswering",),
        ("start_logits", "end_logits"),
        context=True,
        types=True,
    ),
    "fill-mask": TaskSpec(("text",), "AutoModelForMaskedLM", "words", results.words, ("ForMaskedLM",), masked=True),
    "image-feature-extraction": TaskSpec(
        ("image",), "AutoModel", "array", results.array, ("ForMaskedImageModeling", "Model"), ("last_hidden_state",)
    ),
    "image-classification": TaskSpec(
        ("image",),
        "AutoModelForImageClassification",
        "labels",
        results.labels,
        ("ForImageClassification", "ForImageClassificationWithTeacher"),
        named=True,
    ),
    "image-segmentation": TaskSpec(
        ("image",),
        "AutoModelForSemanticSegmentation",
        "segments",
        results.segments,
        ("ForSemanticSegmentation",),
        named=True,
    ),
    "depth-estimation": TaskSpec(
        ("image",),
        "AutoModelForDepthEstimation",
        "depths",
        results.depths,
        ("ForDepthEstimation",),
        ("predicted_depth",),
    ),
    "audio-feature-extraction": TaskSpec(
        ("audio",), "AutoModel", "array", results.array, ("ForPreTraining", "Model"), ("last_hidden_state",)
    ),
    "audio-classification": TaskSpec(
        ("audio",),
        "AutoModelForAudioClassification",
        "labels",
        results.labels,
        ("ForAudioClassification", "ForSequenceClassification"),
        named=True,
    ),
    "speech-recognition": TaskSpec(("audio",), "AutoModelForCTC", "text", results.spoken, ("ForCTC",)),
    ZERO_SHOT: TaskSpec(("image", "text"), "AutoModelForZeroShotImageClassification", "labels", results.labels),
}


def task_of(architecture: str, takes: str) -> str | None:
    """Return the task of a class by its name and the kind of its input; None if it has none of these."""
    fitting = (t for t, spec in TASKS.items() if spec.inputs == (takes,) and architecture.endswith(spec.suffixes))
    return next(fitting, None)
