"""Whole programs give what PyTorch gives in float64, and run where they should: see `tests/programs`.

Its language models are in `tests/llm/test_families.py`.
"""

from __future__ import annotations

import pytest
from tests.cases import device
from tests.programs import DECODERS, PROGRAMS, program


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in DECODERS])
def test_as_pytorch(name: str) -> None:
    program(name).check(device())


@pytest.mark.parametrize("name", ["mobilenet in f16", "mobilenet in int8", "bert", "several outputs at every size"])
def test_as_pytorch_with_the_least_that_a_browser_has(name: str) -> None:
    program(name).check(device(f16=False, subgroups=False, limits="browser"))
