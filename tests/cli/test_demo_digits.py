"""`ptegpu demo digits` and the files behind it."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest
from tests.cli.conftest import Invoke

from ptegpu.cli.digits import picture


def test_the_bundle_is_small() -> None:
    folder = files("ptegpu") / "demo"
    assert sum(len((folder / name).read_bytes()) for name in ("digits.pte", "digits.npz")) < 200_000


def test_it_agrees_with_pytorch(invoke: Invoke) -> None:
    report = invoke("demo", "digits", "--json").json()
    assert (report["right"], report["images"]) == (10, 10)
    assert report["error"] < 1e-5
    assert np.argmax(report["output"]) == report["digit"]
    assert len(report["run_s"]) == 10


def test_it_is_pleasant_to_see(invoke: Invoke) -> None:
    ended = invoke("demo", "digits", "--digit", 7)
    assert (ended.code, ended.err) == (0, "")
    first, *_, accuracy, times = ended.out.splitlines()
    assert first.startswith("digits.pte on ")
    assert accuracy.startswith("10 of 10 images correct · at most ")
    assert times.startswith("load ")
    assert "██" in ended.out


def test_brightness_as_blocks() -> None:
    assert picture(np.array([[0.0, 0.25], [0.5, 1.0]])) == "  ░░\n▒▒██"


@pytest.mark.parametrize("digit", [-1, 10])
def test_there_are_ten_digits(invoke: Invoke, digit: int) -> None:
    assert invoke("demo", "digits", "--digit", digit).code == 2
