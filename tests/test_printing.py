"""Escaping of foreign text for output."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from ptegpu.errors import InvalidProgram, KernelError, OutOfMemory, PtegpuError, UnsupportedProgram
from ptegpu.printing import CUT, LONGEST, json_shown, shown, shown_lines, streamed

NASTY = "a\x1b[2J\r\u202e\u200b\ud800\x85\n"
ESCAPED = r"a\x1b[2J\r\u202e\u200b\ud800\x85\n"


def test_what_hides_reorders_or_ends_a_line_is_escaped() -> None:
    assert "plain, µ × 漢 [bold]" == shown("plain, µ × 漢 [bold]")
    assert ESCAPED == shown(NASTY)
    assert ESCAPED == shown(ESCAPED)


@pytest.mark.parametrize("text", ["x" * 10**6, "\x1b" * 1500, "\U000e0001" * 10**6, "x" * (LONGEST + 1)])
def test_what_is_long_loses_its_middle(text: str) -> None:
    text_shown = shown(f"first{text}last")
    assert LONGEST == len(text_shown)
    assert text_shown.startswith("first") and text_shown.endswith("last") and CUT in text_shown
    assert text_shown == shown(text_shown)


def test_lines_have_a_length_together() -> None:
    assert ["a", r"b\n"] == shown_lines(["a", "b\n"])
    lines = shown_lines(["x" * 300] * 50)
    assert "… and 44 more lines" == lines[-1]
    assert len("\n".join(lines)) <= LONGEST
    assert ["x" * 2000] == shown_lines(["x" * 2000])
    assert 2 == len(shown_lines(["x" * 2000, ""]))


def test_a_stream_keeps_its_lines_and_letters() -> None:
    text = "a\tb\r\nc — \u200c\u200d🙂\n"
    assert "a\tb\nc — \u200c\u200d🙂\n" == streamed(text)
    assert r"\x1b]0;x\x07\r\x08\x9b\u202e" == streamed("\x1b]0;x\x07\r\b\x9b\u202e")


def test_json_means_the_same() -> None:
    value = {"a\x7f\x9b\u202e\U000e0001\ud800×🙂": ["\x1b"]}
    text = json_shown(json.dumps(value, ensure_ascii=False))
    assert text.isprintable() and "×🙂" in text
    assert value == json.loads(text)


def test_every_error_is_shown_so() -> None:
    e = UnsupportedProgram("first\n", *(f"line {k} \x1b" for k in range(1000)))
    first, *_, last = str(e).split("\n")
    assert r"first\n" == first and last.endswith("more lines") and len(str(e)) <= LONGEST
    for again in (pickle.loads(pickle.dumps(e)), copy.copy(e)):
        assert (type(e), str(e)) == (type(again), str(again))
    assert ESCAPED == str(OutOfMemory(NASTY)) == InvalidProgram(NASTY).reason
    assert "line one\n  line two" == str(KernelError("line one", "  line two"))
    assert "" == str(PtegpuError())
