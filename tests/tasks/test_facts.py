"""What a program says about its task: read as it was written, or refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ptegpu.errors import InvalidProgram, UnsupportedProgram
from ptegpu.format import Method, Program
from ptegpu.models.tasks import Audio, Facts, Image, Text, pipeline, points_of, read_facts

IMAGE = Image(32, 24, 3, 8, (0.5,) * 3, (0.25,) * 3, resample="bicubic", shortest=40)
PICTURES = Facts("image-classification", "ViT", image=IMAGE, labels=("cat", "grün"))


def program(value: Any) -> Program:
    """One that says so."""

    def method(name: str, *values: Any) -> Method:
        return Method(name, values, (), tuple(range(len(values))), (), (), "", "")

    return Program(None, 0, 0, (method("forward"), method("ptegpu_facts", value)), {})


@pytest.mark.parametrize(
    "facts",
    [
        PICTURES,
        Facts("question-answering", "Bert", text=Text(512, 8, types=True, pad=1)),
        Facts("fill-mask", "Bert", text=Text(512, 1, mask=4)),
        Facts("audio-classification", "AST", audio=Audio(16_000, 9000, 400, 160, "fbank", False, 64, 50, -4.0, 4.5)),
        Facts("zero-shot-image-classification", "Siglip", image=IMAGE, text=Text(64, 8, masked=False), many=True),
    ],
)
def test_facts_are_read_as_they_were_written(facts: Facts) -> None:
    assert facts == read_facts(program(facts.json()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "ptegpu_facts: version 2; this ptegpu knows version 1"),
        ({"task": "poetry"}, "not one of feature-extraction"),
        ({"text": {"length": 4, "batch": 1}}, "image-classification takes image"),
        ({"image": None}, "image-classification takes image"),
        ({"labels": "cat"}, "no list"),
        ({"secret": 1}, "without the fields of a Facts"),
        ({"image": {**json.loads(PICTURES.json())["image"], "height": 1 << 30}}, "pictures of"),
        ({"image": {**json.loads(PICTURES.json())["image"], "std": [0.0, 1.0, 1.0]}}, "mean, std and scale are"),
        ({"image": {**json.loads(PICTURES.json())["image"], "mean": [0.0]}}, "a mean and a std for each channel"),
        ({"image": {**json.loads(PICTURES.json())["image"], "resample": "magic"}}, "not one of nearest"),
    ],
)
def test_facts_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    told = {k: v for k, v in (json.loads(PICTURES.json()) | change).items() if v is not None}
    with pytest.raises(InvalidProgram) as refused:
        read_facts(program(json.dumps(told)))
    assert message in str(refused.value) and "bundle" not in str(refused.value)


@pytest.mark.parametrize(
    "audio", [{"rate": 10**9}, {"most": 1 << 40}, {"least": 0}, {"features": "fbank", "mels": 10**6}]
)
def test_sounds_have_bounds(audio: dict[str, Any]) -> None:
    facts = Facts("audio-classification", "Hubert", audio=replace(Audio(16_000, 9000, 400, frames=9), **audio))
    with pytest.raises(InvalidProgram, match="ptegpu_facts: "):
        read_facts(program(facts.json()))


def test_a_compiled_program_holds_for_inputs_of_the_same_sizes() -> None:
    pairs = points_of(Facts("question-answering", "Bert", text=Text(3, 2, types=True)))
    assert {} == pairs[0] and 7 == len(pairs)
    assert {f"input {k}[{d}]": n for k in range(3) for d, n in enumerate((2, 1))} in pairs
    both = points_of(Facts("zero-shot-image-classification", "CLIP", image=IMAGE, text=Text(9, 2, fixed=True)))
    assert [{}, *({f"input {k}[{d}]": n for k in (1, 2) for d, n in enumerate((b, 9))} for b in (1, 2))] == both
    sounds = points_of(Facts("audio-classification", "Hubert", audio=Audio(16_000, 1000, 400, 320)))
    assert [{}, {"input 0[1]": 400}, {"input 0[1]": 720}] == sounds
    assert [{}, {"input 0[0]": 1}] == points_of(PICTURES, [1])


@pytest.mark.parametrize("value", [3, "", "{", "[" * 100_000, "[]", "x" * (1 << 25)])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidProgram):
        read_facts(program(value))


def test_a_program_that_says_nothing(mlp: Any) -> None:
    with pytest.raises(UnsupportedProgram, match="does not say what it is for: it has no method 'ptegpu_facts'"):
        pipeline(mlp)


@pytest.fixture
def mlp() -> Any:
    from tests.cli.conftest import DATA

    return DATA / "mlp.pte"
