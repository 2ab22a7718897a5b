"""Bundles as files."""

from __future__ import annotations

from typing import Any


def is_bundle(path: Any) -> bool:
    return False
