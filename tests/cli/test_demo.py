"""`ptegpu demo`: the bundled model tells a tale."""

from __future__ import annotations

import io
import re
import sys
from importlib.resources import files

import pytest
from tests.cli.conftest import Invoke

from ptegpu.cli.demo import SEED, TITLE, WrappedLines

FEW = ("--max-tokens", 20)


def test_the_bundle_is_small() -> None:
    sizes = {f.name: len(f.read_bytes()) for f in (files("ptegpu") / "demo").iterdir() if f.name.startswith("tales.")}
    assert {"tales.pte", "tales.tokenizer.json", "tales.tokenizer_config.json", "tales.heldout.txt"} == set(sizes)
    assert sum(sizes.values()) <= 5_000_000


def test_it_tells_a_tale(invoke: Invoke) -> None:
    ended = invoke("demo", *FEW)
    assert (0, "") == (ended.code, ended.err)
    title, gap, *tale, end, last = ended.out.splitlines()
    assert (TITLE, "", "") == (title, gap, end)
    assert re.fullmatch(r"[A-Z][a-z]+ .* …", "\n".join(tale), re.DOTALL)
    assert re.fullmatch(rf"tales\.pte on .+ \(.+, .+\) · 20 tokens, [\d.e+]+ tokens/s · seed {SEED}", last)


def test_as_json(invoke: Invoke) -> None:
    record = invoke("demo", "--json", *FEW).json()
    assert (SEED, "length") == (record["seed"], record["finish_reason"])
    assert 20 == len(record["tokens"]) == len(record["logprobs"])
    assert {"index", "name", "type", "backend", "engine"} == set(record["adapter"])
    assert record["timings"]["decode_tokens"] == 19
    again = invoke("demo", *FEW).out
    assert record["text"] in again


@pytest.mark.slow
def test_prompt_seed_and_temperature_matter(invoke: Invoke) -> None:
    def told(*options: object) -> str:
        return str(invoke("demo", "--json", *FEW, *options).json()["text"])

    tales = [told(), told("--seed", 6), told("--prompt", "The Wolf"), told("--temperature", 0)]
    assert 4 == len(set(tales))
    assert tales[3] == told("--temperature", 0, "--seed", 6)


def test_an_empty_title_is_a_tale_without_one(invoke: Invoke) -> None:
    assert 0 == invoke("demo", "--prompt", "", *FEW).code


def test_a_tale_ends_where_the_context_does(invoke: Invoke) -> None:
    record = invoke("demo", "--prompt", "and the " * 125, "--max-tokens", 20, "--json").json()
    assert ("context", 256) == (record["finish_reason"], len(record["prompt_tokens"]) + len(record["tokens"]) - 1)


def test_options_before_digits_are_not_lost(invoke: Invoke) -> None:
    ended = invoke("demo", "--json", "digits")
    assert 2 == ended.code
    assert "options of digits come after its name" in ended.err


@pytest.mark.parametrize("options", [("--max-tokens", 0), ("--temperature", -1)])
def test_impossible_options(invoke: Invoke, options: tuple[object, ...]) -> None:
    assert 2 == invoke("demo", *options).code


def test_without_tokenizers_it_says_what_to_install(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    ended = invoke("demo")
    assert (1, "error: tokenizers is not installed. Run: pip install 'ptegpu[llm]'\n") == (ended.code, ended.err)


@pytest.mark.parametrize(
    "pieces", [["The old", " King", "'s dau", "ghter\nsat by a ", "well."], [*"The old King's daughter"]]
)
@pytest.mark.parametrize("width", [1, 10, 14, 80, None])
def test_lines_of_whole_words(pieces: list[str], width: int | None) -> None:
    lines, shown = WrappedLines(width), io.StringIO()
    for piece in pieces:
        shown.write(lines.push(piece))
    shown.write(lines.finish())
    text = "".join(pieces)
    assert text.split() == shown.getvalue().split()
    if width in (80, None):
        assert text == shown.getvalue()
    elif width != 1:
        assert max(map(len, shown.getvalue().splitlines())) <= width


def test_lines_break_where_the_width_ends() -> None:
    lines = WrappedLines(9)
    assert "The old\nKing sat\ndown" == lines.push("The old King sat down") + lines.finish()
