"""The example of a custom operator, run as a user would: in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptegpu.ops import custom

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_operator_of_ones_own_runs_in_one_plan() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "custom_operator.py")],
        capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *rows, last = done.stdout.splitlines()
    matches = [re.fullmatch(r"(\d+) rows: at most (\S+) from PyTorch", line) for line in rows]
    assert [5, 64, 1] == [int(m[1]) for m in matches if m]
    assert all(float(m[2]) < 1e-5 for m in matches if m)
    assert last.startswith("1 plan on ")


def test_the_names_for_writing_operators_exist() -> None:
    assert [] == [name for name in custom.__all__ if not hasattr(custom, name)]
