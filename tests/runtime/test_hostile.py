"""Files with flipped bytes, all the way to a bundle: what is wrong is one of our errors, and nothing else happens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ptegpu import PtegpuError
from ptegpu.compiler.program import compile

DATA = Path(__file__).parents[1] / "data"
MUTANTS = 300  # of each file


@pytest.mark.parametrize("name", ["mlp", "cnn", "control", "methods"])
def test_flipped_bytes_end_in_a_bundle_or_in_an_error_of_ours(name: str) -> None:
    original = (DATA / f"{name}.pte").read_bytes()
    compile(original)
    rng = random.Random(name)
    refused = 0
    for _ in range(MUTANTS):
        data = bytearray(original)
        for _ in range(rng.choice([1, 1, 2, 4])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            compile(bytes(data))
        except PtegpuError as error:
            refused += 1
            assert str(error)
    assert refused > MUTANTS // 10
