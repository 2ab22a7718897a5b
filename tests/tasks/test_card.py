"""Cards of programs: read as they were written, or refused in one line."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from ptegpu import pipeline
from ptegpu.errors import InvalidProgram, UnsupportedProgram
from ptegpu.format import FileMethod, ProgramFile
from ptegpu.models.card import Card, read_card
from ptegpu.models.kinds import PROGRAM, SEEING, SPEECH, TASK, TEXT
from ptegpu.models.parts import Audio, Image, Speech, Text, VisionSpec
from ptegpu.models.tasks.specs import points_of

IMAGE = Image(32, 24, 3, 8, (0.5,) * 3, (0.25,) * 3, resample="bicubic", shortest=40)
PICTURES = Card.of_task("image-classification", "ViT", image=IMAGE, labels=("cat", "grün"))


def program(value: Any) -> ProgramFile:
    """Return a program with this card."""

    def method(name: str, *values: Any) -> FileMethod:
        return FileMethod(name, values, (), tuple(range(len(values))), (), (), "", "")

    return ProgramFile(None, 0, 0, (method("forward"), method("ptegpu_card", value)), {})


@pytest.mark.parametrize(
    "card",
    [
        PICTURES,
        Card.of_task("question-answering", "Bert", text=Text(512, 8, types=True, pad=1)),
        Card.of_task("fill-mask", "Bert", text=Text(512, 1, mask=4)),
        Card.of_task(
            "audio-classification", "AST", audio=Audio(16_000, 9000, 400, 160, "fbank", False, 64, 50, -4.0, 4.5)
        ),
        Card.of_task(
            "zero-shot-image-classification", "Siglip", image=IMAGE, text=Text(64, 8, masked=False), many=True
        ),
    ],
)
def test_facts_are_read_as_they_were_written(card: Card) -> None:
    assert card == read_card(program(card.json()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "ptegpu_card: version 2; this ptegpu reads version 1"),
        ({"task": "poetry"}, "not one of feature-extraction"),
        ({"text": {"length": 4, "batch": 1}}, "image-classification takes image"),
        ({"image": None}, "image-classification takes image"),
        ({"labels": "cat"}, "expected a list"),
        ({"secret": 1}, "expected the fields of a Card"),
        ({"image": {**json.loads(PICTURES.json())["image"], "height": 1 << 30}}, "a picture's side is 1073741824"),
        ({"image": {**json.loads(PICTURES.json())["image"], "std": [0.0, 1.0, 1.0]}}, "std of 0"),
        ({"image": {**json.loads(PICTURES.json())["image"], "mean": [0.0]}}, "a mean and a std for each channel"),
        ({"image": {**json.loads(PICTURES.json())["image"], "resample": "magic"}}, "not one of nearest"),
    ],
)
def test_facts_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    values = {k: v for k, v in (json.loads(PICTURES.json()) | change).items() if v is not None}
    with pytest.raises(InvalidProgram) as refused:
        read_card(program(json.dumps(values)))
    assert message in str(refused.value) and "bundle" not in str(refused.value)


@pytest.mark.parametrize(
    "audio", [{"rate": 10**9}, {"most": 1 << 40}, {"least": 0}, {"features": "fbank", "mels": 10**6}]
)
def test_sounds_have_bounds(audio: dict[str, Any]) -> None:
    card = Card.of_task("audio-classification", "Hubert", audio=replace(Audio(16_000, 9000, 400, frames=9), **audio))
    with pytest.raises(InvalidProgram, match="ptegpu_card: "):
        read_card(program(card.json()))


def test_a_compiled_program_holds_for_inputs_of_the_same_sizes() -> None:
    pairs = points_of(Card.of_task("question-answering", "Bert", text=Text(3, 2, types=True)))
    assert {} == pairs[0] and 7 == len(pairs)
    assert {f"input {k}[{d}]": n for k in range(3) for d, n in enumerate((2, 1))} in pairs
    both = points_of(Card.of_task("zero-shot-image-classification", "CLIP", image=IMAGE, text=Text(9, 2, fixed=True)))
    assert [{}, *({f"input {k}[{d}]": n for k in (1, 2) for d, n in enumerate((b, 9))} for b in (1, 2))] == both
    sounds = points_of(Card.of_task("audio-classification", "Hubert", audio=Audio(16_000, 1000, 400, 320)))
    assert [{}, {"input 0[1]": 400}, {"input 0[1]": 720}] == sounds
    assert [{}, {"input 0[0]": 1}] == points_of(PICTURES, [1])


@pytest.mark.parametrize("value", [3, "", "{", "[" * 100_000, "[]", "x" * (1 << 25)])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(InvalidProgram):
        read_card(program(value))


def test_a_program_that_says_nothing(mlp: Any) -> None:
    with pytest.raises(UnsupportedProgram, match="does not say what it is for, not a program for a task"):
        pipeline(mlp)


@pytest.fixture
def mlp() -> Any:
    from tests.cli.conftest import DATA

    return DATA / "mlp.pte"


SPEECH_PART = Speech(16000, 160, 400, 100, 80, 40, 60, 31, 30, languages={"en": 32}, tasks={"transcribe": 33})
VISION_PART = VisionSpec(32, 4, 8, 9, 64, True, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def earlier(name: str, value: Any, **constants: Any) -> ProgramFile:
    """Return a program in the form of versions before cards, with constants of ExecuTorch."""
    methods = {"forward": (), name: (value,)} | {
        key: v if isinstance(v, tuple) else (v,) for key, v in constants.items()
    }
    converted = [FileMethod(key, v, (), tuple(range(len(v))), (), (), "", "") for key, v in methods.items()]
    return ProgramFile(None, 0, 0, tuple(converted), {})


def test_files_of_earlier_versions_have_cards() -> None:
    facts = {"task": "fill-mask", "architecture": "Bert", "version": 1, "text": {"length": 4, "batch": 1, "mask": 2}}
    card = read_card(earlier("ptegpu_facts", json.dumps(facts)))
    assert (TASK, "fill-mask", ("tokens", "mask"), ("logits",)) == (card.kind, card.task, card.inputs, card.outputs)
    speech = {"version": 1} | asdict(SPEECH_PART)
    assert Card(SPEECH, speech=SPEECH_PART) == read_card(earlier("ptegpu_speech", json.dumps(speech)))
    vision = {"version": 1} | asdict(VISION_PART)
    program = earlier("ptegpu_pictures", json.dumps(vision), get_max_context_len=64, get_eos_ids=(3, 5))
    assert Card(SEEING, vision=VISION_PART, context=64, stop=(3, 5)) == read_card(program)
    for name, text in (("ptegpu_speech", "{}"), ("ptegpu_pictures", '{"version": 2}'), ("ptegpu_facts", "[]")):
        with pytest.raises(InvalidProgram, match=name):
            read_card(earlier(name, text))


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (Card("film"), "kind is 'film', not one of text"),
        (Card(TASK), "task is None, but kind is 'task'"),
        (Card(TEXT, speech=SPEECH_PART), "speech does not go with kind 'text'"),
        (Card(SPEECH, speech=replace(SPEECH_PART, hop=0)), "hop is 0"),
        (Card(SEEING), "vision does not go with kind 'vision-language'"),
        (Card(SEEING, vision=replace(VISION_PART, std=(0.0, 1.0, 1.0))), "sizes or std are out of range"),
        (Card(TEXT, context=0), "context is 0"),
        (Card(TEXT, stop=(-1,)), "stop has tokens out of range"),
    ],
)
def test_cards_that_contradict_themselves(card: Card, message: str) -> None:
    with pytest.raises(InvalidProgram, match="ptegpu_card: ") as refused:
        read_card(program(card.json()))
    assert message in str(refused.value)


def test_a_program_without_a_card() -> None:
    assert Card(PROGRAM) == read_card(earlier("other", 1))
