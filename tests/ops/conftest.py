"""Collection of the case tables in this folder: each table becomes tests with its own options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.tables import tests_of

from ptegpu.plan.target import CLASSES

TABLES: dict[str, tuple[str, dict[str, Any]]] = {  # table → name of its test, options of `oracle.check`
    "CASES": ("test_case", {}),
    "BROWSER": ("test_in_a_browser_without_features", {"f16": False, "subgroups": False, "limits": "browser"}),
    "SOFTWARE": ("test_as_on_a_cpu", {"device_class": CLASSES["software"]}),
}


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> Sequence[pytest.Item | pytest.Collector] | None:
    if name not in TABLES:
        return None
    from tests.oracle import check  # needs PyTorch, like every file with such a table

    test, options = TABLES[name]
    return tests_of(collector, test, obj, lambda case: check(case, **options))
