"""Options for loading are checked where they are made; sizes for a method that does not exist are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ptegpu
from ptegpu import LoadOptions
from ptegpu.errors import InvalidInput

MLP = Path(__file__).parents[1] / "data" / "mlp.pte"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": 1.5}, 'device is "auto", an index or part of a name, not float'),
        ({"engine": "cuda"}, """engine is "auto", "wgpu" or "dawn", not 'cuda'"""),
        ({"limits": {"memory": 1}}, "limits are ptegpu.Limits(…), not dict"),
        ({"progress": 3}, "progress is a function of (phase, done, of), not int"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        LoadOptions(**options)
    assert message == str(error.value)


def test_points_of_a_method_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="no method 'decode'; the program has forward"):
        ptegpu.compile(MLP, points={"decode": [{}]})
