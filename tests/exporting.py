"""PyTorch modules to `.pte` bytes, quickly and quietly: what tests and tools export with."""

from __future__ import annotations

from ptegpu.export import cache_patterns, export, quiet

__all__ = ["cache_patterns", "export", "quiet"]
