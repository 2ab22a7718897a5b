"""Tests for Dawn only. `make test` runs it on SwiftShader, in a process of its own: see docs/engines.md."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("PTEGPU_ENGINE") == "dawn" else ["test_*.py"]
