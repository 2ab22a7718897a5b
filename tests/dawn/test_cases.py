"""Every case of the tables in `tests/ops` on Dawn, with all that the adapter has."""

from __future__ import annotations

import pytest
from tests.cases import Case, tables
from tests.oracle import check


@pytest.mark.parametrize("case", list(tables()), ids=str)
def test_case(case: Case) -> None:
    check(case)
