"""Every architecture of docs/models.md: exported, run at two sizes, compared with PyTorch; and the page itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.architectures import TOLERANCE, figures, run
from tests.zoo.architectures import ARCHITECTURES, QUICK, Architecture
from tools import models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def _line(a: Architecture) -> Any:
    return pytest.param(a, id=a.name.replace(" ", "-"), marks=() if a.name in QUICK else pytest.mark.heavy)


@pytest.mark.parametrize("architecture", [_line(a) for a in ARCHITECTURES])
def test_it_gives_what_pytorch_gives(architecture: Architecture) -> None:
    actual, expected = run(architecture), figures()[architecture.name]
    assert actual.error < TOLERANCE
    assert {**expected, "error": 0} == {**models.entry(actual), "error": 0}


def test_the_page_is_current() -> None:
    assert [a.name for a in ARCHITECTURES] == list(figures()), "run: python -m tools.models --measure"
    assert models.page() == PAGE.read_text("utf-8"), "run: python -m tools.models > docs/models.md"


def test_what_needs_the_host_or_many_plans_says_why() -> None:
    by_name = figures()
    needs = {a.name for a in ARCHITECTURES if by_name[a.name]["host"] or by_name[a.name]["plans"] > 2}
    assert needs == {a.name for a in ARCHITECTURES if a.why}
    assert all(f["error"] < TOLERANCE for f in by_name.values())
