"""The corpus: small programs across all features, exported once, with PyTorch's results for their calls.

`python -m tools.corpus` counts them by feature; `python -m tools.corpus make` adds new entries of `tests/corpus`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cases import device
from tests.replay import ARCHIVE, features_of, run_bundle, run_file
from tests.saved import leaves, read

PROGRAMS = read(ARCHIVE)[1]
WAYS = {"file": run_file, "bundle": run_bundle}
MODULES, MOST_BYTES = 300, 10_000_000
EACH = {  # the least number of programs with a feature
    "sizes from data": 80,
    "states": 50,
    "control flow": 25,
    "sizes that change": 100,
    "calls of several sizes": 150,
    "zero-sized": 15,
    "structured results": 50,
    "several methods": 10,
    "several delegates": 10,
    "one delegate": 200,
    "no delegate": 200,
    "jumps": 20,
    "resets": 50,
    "quantized weights": 10,
    "f16": 20,
    "in place": 20,
    **{
        f"dtype {d}": 10 for d in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float64")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, way: str) -> None:
    WAYS[way](PROGRAMS[name], device())


def test_there_is_enough_of_everything() -> None:
    counts: dict[str, int] = dict.fromkeys(EACH, 0)
    for program in PROGRAMS.values():
        for feature in features_of(program):
            counts[feature] = counts.get(feature, 0) + 1
    assert {} == {feature: counts[feature] for feature, least in EACH.items() if counts[feature] < least}
    assert len(PROGRAMS) >= 2 * MODULES and MOST_BYTES > ARCHIVE.stat().st_size


@pytest.mark.torch
def test_the_archive_has_what_the_tables_list() -> None:
    from tests.corpus import TABLES

    listed = [
        (name if delegate else f"{name}, undelegated", feature)
        for feature, table in TABLES.items()
        for name, entry in table.items()
        for delegate in ((True, False) if entry.delegate else (False,))
    ]
    assert len(listed) == len(dict(listed)), "a name is in two tables"
    assert dict(listed) == {name: p.features[0] for name, p in PROGRAMS.items()}, "run: python -m tools.corpus make"


def test_a_wrong_number_a_wrong_structure_and_a_wrong_size_are_noticed() -> None:
    program = PROGRAMS["a dict"]
    first = program.calls[0]
    wrong = [first.expected[0] + 1e-3, *first.expected[1:]]
    shape = [first.expected[0][:1], *first.expected[1:]]
    for call, message in (
        (replace(first, expected=wrong), "call 0, output 0: error"),
        (replace(first, expected=shape), "call 0, output 0: float32"),
        (replace(first, result=[0, 1]), "call 0: dict, PyTorch list"),
        (replace(first, result={"sum": 0, "other": 1}), "call 0: "),
    ):
        for run in WAYS.values():
            with pytest.raises(AssertionError, match=message):
                run(replace(program, calls=[call]), device())


def test_leaves_come_in_the_order_of_the_structure() -> None:
    assert [1, 2, 3] == leaves({"a": [0, 1], "b": (2,)}, {"a": [1, 2], "b": (3,)}, "")
    np.testing.assert_equal([None], leaves(0, None, ""))
