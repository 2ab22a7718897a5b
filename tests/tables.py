"""Tests from tables of cases: a file in tests/ops or tests/portable lists cases, its folder's conftest.py runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def tests_of(
    module: pytest.Module, name: str, cases: Sequence[Any], check: Callable[[Any], None]
) -> Sequence[pytest.Item | pytest.Collector]:
    """Return one test of a module for each case of a table, as if the module defined a parametrized test `name`."""

    @pytest.mark.parametrize("case", cases, ids=str)
    def test(case: Any) -> None:
        check(case)

    setattr(module.obj, name, test)
    return module.ihook.pytest_pycollect_makeitem(collector=module, name=name, obj=test)
