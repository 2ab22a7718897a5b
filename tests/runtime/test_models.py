"""Whole programs give what PyTorch gives in float64, and run where they should: see `tests/programs`."""

from __future__ import annotations

import pytest
from tests.cases import device
from tests.programs import PROGRAMS, program


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_pytorch(name: str) -> None:
    program(name).check(device())


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_pytorch_with_the_least_that_a_browser_has(name: str) -> None:
    program(name).check(device(f16=False, subgroups=False, limits="browser"))
