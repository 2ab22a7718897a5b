"""The fixture of the JavaScript tests: it matches Python."""

from __future__ import annotations

import json

from tests.web.llm_fixture import FILE, make


def test_the_fixture_is_current() -> None:
    assert json.loads(json.dumps(make())) == json.loads(FILE.read_text("utf-8")), "python -m tests.web.llm_fixture"
