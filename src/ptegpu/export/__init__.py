"""PyTorch modules and language-model checkpoints to `.pte`. Needs the extra `export`; nothing else imports torch."""

from __future__ import annotations

from .backend import cache_patterns, quiet
from .compiled import CompiledModule
from .dynamo import EagerFallback, backend
from .llm import Check, ExportedModel, Options, export_llm, load_decoder
from .lowering import Lowered, Outside, lower, trace
from .module import Exported, Source, export, export_with_account, find_source

__all__ = [
    "Check",
    "CompiledModule",
    "EagerFallback",
    "Exported",
    "ExportedModel",
    "Lowered",
    "Options",
    "Outside",
    "Source",
    "backend",
    "cache_patterns",
    "export",
    "export_llm",
    "export_with_account",
    "find_source",
    "load_decoder",
    "lower",
    "quiet",
    "trace",
]
