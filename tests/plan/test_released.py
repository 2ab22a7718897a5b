"""Bundles of released versions: each later version opens them, with the results of their programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ptegpu

DATA = Path(__file__).parents[1] / "data"
RELEASED = sorted((DATA / "released").glob("*/*.bundle"))


def arguments(method: ptegpu.Method) -> list[np.ndarray | int]:
    """Return arguments at the largest sizes; 1 for an int."""
    rng = np.random.default_rng(0)
    return [
        1 if spec.shape is None or spec.dtype is None else rng.integers(0, 3, spec.shape).astype(spec.dtype)
        for spec in method.inputs
    ]


def test_there_are_bundles_of_the_first_release() -> None:
    assert 4 == sum(path.parent.name == "0.1.0" for path in RELEASED)


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_a_released_bundle_opens_and_runs(path: Path) -> None:
    with ptegpu.load(path) as bundle, ptegpu.load(DATA / f"{path.stem}.pte") as program:
        assert set(program.method_names) == set(bundle.method_names)
        for name in program.method_names:
            inputs = arguments(program.method(name))
            expected, actual = program.method(name).execute(inputs), bundle.method(name).execute(inputs)
            assert len(expected) == len(actual)
            for right, result in zip(expected, actual):
                if isinstance(right, np.ndarray):
                    np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-6)
                else:
                    assert right == result
