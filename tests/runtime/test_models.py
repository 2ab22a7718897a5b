"""Whole programs, compared with PyTorch in float64, that run where they should: see `tests/programs`.

Its language models are in `tests/llm/test_families.py`.
"""

from __future__ import annotations

import pytest
from tests.cases import device
from tests.changes import change_outputs
from tests.programs import DECODERS, PROGRAMS, program

SMALL = ("scaled", "small ints")
EMPTY = {("scaled", "empty"): 2, ("zeroed", "empty"): 2, ("shifted", "empty"): 2}
LEFT_AS_THEY_ARE = {  # number of outputs, by (change, kind of output)
    "several outputs": {SMALL: 2},
    "several outputs, undelegated": {SMALL: 2},
    "several outputs at every size": {SMALL: 6, ("shifted", "equal elements"): 1},
    "several outputs at every size, undelegated": {SMALL: 6, ("shifted", "equal elements"): 1},
    "every kind of output": EMPTY,
    "every kind of output, undelegated": EMPTY,
    "int64": {SMALL: 1},
}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in DECODERS])
def test_as_pytorch(name: str) -> None:
    program(name).check(device())
    changed = change_outputs(program(name))
    assert ([], LEFT_AS_THEY_ARE.get(name, {})) == (changed.accepted, changed.unchanged)


@pytest.mark.parametrize("name", ["mobilenet in f16", "mobilenet in int8", "bert", "several outputs at every size"])
def test_as_pytorch_with_the_least_that_a_browser_has(name: str) -> None:
    program(name).check(device(f16=False, subgroups=False, limits="browser"))
