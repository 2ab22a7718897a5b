"""`invoke` runs the command line in this process and tells what it printed and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ptegpu.cli import main

DATA = Path(__file__).resolve().parent.parent / "data"


@dataclass(frozen=True)
class Ended:
    code: int | str | None
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Invoke = Callable[..., Ended]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    def run(*arguments: object) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Ended(ended.value.code, out, err)

    return run


@pytest.fixture
def mlp() -> Path:
    return DATA / "mlp.pte"


@pytest.fixture
def data() -> Path:
    return DATA


@pytest.fixture
def counting() -> Path:
    """Plans with host steps between them."""
    return DATA / "counting.pte"
