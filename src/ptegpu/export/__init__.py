"""PyTorch modules and language-model checkpoints to `.pte`. Needs the extra `export`; nothing else imports torch."""

from __future__ import annotations

from .backend import cache_patterns, quiet
from .compiled import CompiledModule
from .dynamo import EagerFallback, torch_backend
from .hf import ExportedTask, export_hf, is_decoder
from .hf_models import Bounds, wrapped
from .llm import Check, ExportedModel, Options, export_llm, load_decoder
from .lowering import Lowered, Outside, lower, trace
from .module import Exported, Source, export, export_with_account, find_source
from .quantize import QUANTIZATIONS
from .speech import ExportedSpeech, export_speech

__all__ = [
    "QUANTIZATIONS",
    "Bounds",
    "Check",
    "CompiledModule",
    "EagerFallback",
    "Exported",
    "ExportedModel",
    "ExportedSpeech",
    "ExportedTask",
    "Lowered",
    "Options",
    "Outside",
    "Source",
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
