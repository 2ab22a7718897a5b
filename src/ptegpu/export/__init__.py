"""PyTorch modules and checkpoints to `.pte`. Needs the extra `export`; no other package imports torch."""

from __future__ import annotations

from .backend import cache_patterns, quiet
from .check import CheckResult
from .compiled import CompiledModule
from .dynamo import EagerFallback, torch_backend
from .hf import TaskSummary, export_hf, is_decoder
from .hf_models import Bounds, wrapped
from .llm import LlmOptions, ModelSummary, export_llm, load_decoder
from .lowering import Lowered, MethodSource, Outside, lower, trace
from .module import export, export_with_account, find_source
from .pipeline import Exported
from .quantize import QUANTIZATIONS
from .speech import SpeechSummary, export_speech

__all__ = [
    "QUANTIZATIONS",
    "Bounds",
    "CheckResult",
    "CompiledModule",
    "EagerFallback",
    "Exported",
    "LlmOptions",
    "Lowered",
    "MethodSource",
    "ModelSummary",
    "Outside",
    "SpeechSummary",
    "TaskSummary",
    "cache_patterns",
    "export",
    "export_hf",
    "export_llm",
    "export_speech",
    "export_with_account",
    "find_source",
    "is_decoder",
    "load_decoder",
    "lower",
    "quiet",
    "torch_backend",
    "trace",
    "wrapped",
]
