"""The tests of the tables in this folder: every case of `CASES` against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.tables import tests_of


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> Sequence[pytest.Item | pytest.Collector] | None:
    if name != "CASES":
        return None
    from tests.portable.harness import check  # needs PyTorch, as every file with such a table does

    return tests_of(collector, "test_case", obj, check)
