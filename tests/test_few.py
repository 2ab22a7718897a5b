"""A saved case of each operator and a few saved models with PyTorch's results; PyTorch itself is not needed.

`python -m tools.saved make tests/data/few.zip --few` regenerates the file from the tables in `tests/ops` and
`tests/programs`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import device
from tests.saved import read

PROBLEMS, PROGRAMS = read(Path(__file__).parent / "data" / "few.zip")


@pytest.mark.parametrize("name", PROBLEMS, ids=[name[:80] for name in PROBLEMS])
def test_operator(name: str) -> None:
    PROBLEMS[name].check(device())


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    PROGRAMS[name].check(device())
