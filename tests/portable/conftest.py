"""Collection of the case tables in this folder: every case of `CASES` runs against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.tables import tests_of


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> Sequence[pytest.Item | pytest.Collector] | None:
    if name != "CASES":
        return None
    from tests.portable.harness import check  # needs PyTorch, like every file with such a table

    return tests_of(collector, "test_case", obj, check)
