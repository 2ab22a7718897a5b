"""The fixture of the browser's rows: it matches Python."""

from __future__ import annotations

import json

from tests.web.rows import FILE, text

from ptegpu.plan.numbers import SCALAR


def test_the_browser_s_rows_are_those_of_python() -> None:
    assert FILE.read_text() == text(), "regenerate it: python -m tests.web.rows"
    assert {op for op, _, _ in json.loads(text())["rows"]} == {*SCALAR, "const", "size", "int", "item"}
