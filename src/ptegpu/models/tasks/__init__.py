"""Programs for tasks on pictures, sounds or texts (`ptegpu export hf`).

`specs.py` is the table of tasks, `results.py` interprets outputs, `pipeline.py` runs the program. None needs PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from .pipeline import Pipeline
    from .results import Answer, Label, Span
    from .specs import TASKS, TaskSpec

__getattr__ = lazy(
    __name__,
    {
        "Answer": ".results",
        "Label": ".results",
        "Pipeline": ".pipeline",
        "Span": ".results",
        "TASKS": ".specs",
        "TaskSpec": ".specs",
    },
)

__all__ = ["TASKS", "Answer", "Label", "Pipeline", "Span", "TaskSpec"]
