"""Files with flipped bytes, all the way to a plan: whatever is wrong is one of our errors, and nothing else happens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from ptegpu.plan.lower import lower
from ptegpu.plan.symbols import Symbols

from ptegpu import PtegpuError
from ptegpu.compiler.join import join
from ptegpu.compiler.partition import mutates, partition
from ptegpu.format import read_program
from ptegpu.graph.importer import import_method
from ptegpu.graph.live import settle
from ptegpu.passes.memory import plan_memory
from ptegpu.plan import Target

DATA = Path(__file__).parents[1] / "data"
MUTANTS = 300  # of each file


def plan(data: bytes) -> None:
    """Everything that loading does before it needs a GPU."""
    file = read_program(data)
    for method in file.methods:
        linear = import_method(method, file.named_data, mutates)
        graphs, _, _ = join(linear, partition(linear))
        for joined in graphs.values():
            if not joined.dynamic:
                settle(joined.graph)
                lower(joined.graph, plan_memory(joined.graph, Target()), Target(), Symbols(joined.graph))


@pytest.mark.parametrize("name", ["mlp", "cnn", "control", "methods"])
def test_flipped_bytes_end_in_a_plan_or_in_an_error_of_ours(name: str) -> None:
    original = (DATA / f"{name}.pte").read_bytes()
    plan(original)
    rng = random.Random(name)
    refused = 0
    for _ in range(MUTANTS):
        data = bytearray(original)
        for _ in range(rng.choice([1, 1, 2, 4])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            plan(bytes(data))
        except PtegpuError as error:
            refused += 1
            assert str(error)
    assert refused > MUTANTS // 10
