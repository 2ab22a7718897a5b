"""Vision-language models compared with transformers: pixels, the prefill's logits, and 32 tokens."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.cases import close
from tests.cli.conftest import Invoke, invoke  # noqa: F401 (a fixture)
from tests.zoo import seeing

from ptegpu.errors import InvalidInput
from ptegpu.export import Exported, LlmOptions, ModelSummary, export_llm
from ptegpu.models.text import BatchEngine, LanguageModel
from ptegpu.models.text.pictures import pixels

PICTURES = [seeing.picture(40, 60), seeing.picture(50, 20, 1), seeing.picture(64, 64, 2), seeing.picture(7, 300, 3)]
PROMPT = "w1 w2 <image> w3 w4"


@pytest.fixture(scope="module")
def reference() -> Any:
    return seeing.model()


@pytest.fixture(scope="module")
def exported(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Exported[ModelSummary]:
    folder = seeing.save(reference, tmp_path_factory.mktemp("seeing"))
    return export_llm(folder, folder / "model.pte", LlmOptions(max_seq=64))


@pytest.fixture(scope="module")
def loaded(exported: Exported[ModelSummary]) -> Iterator[LanguageModel]:
    with LanguageModel(exported.files[0]) as model:
        yield model


@pytest.fixture
def model(loaded: LanguageModel) -> LanguageModel:
    """Return the loaded model with an empty cache."""
    loaded.reset()
    return loaded


def inputs(tokens: list[int], pictures: list[np.ndarray], split: bool = True) -> dict[str, torch.Tensor]:
    """Return the inputs that transformers takes."""
    features = seeing.processor(split)([pictures], return_tensors="pt")
    plain = torch.tensor([[t if t < seeing.VOCAB else seeing.IMAGE for t in tokens]])
    return {"input_ids": plain, "attention_mask": torch.ones_like(plain), **features}


def expected(
    reference: Any, tokens: list[int], pictures: list[np.ndarray], split: bool = True
) -> tuple[Any, list[int]]:
    """Return the logits after a prompt, and the 32 tokens that follow."""
    arguments = inputs(tokens, pictures, split)
    with torch.no_grad():
        logits = reference(**arguments).logits[0, -1].numpy()
        sequences = reference.generate(**arguments, max_new_tokens=32, do_sample=False, eos_token_id=None)
    return logits, sequences[0, len(tokens) :].tolist()


def logits_of(model: LanguageModel, tokens: list[int]) -> np.ndarray:
    """Return the logits after the tokens, from the program itself in calls of 9 tokens."""
    import ptegpu

    assert model.pictures is not None
    with ptegpu.load(model.program.file.path or "", methods=["forward"]) as program:
        for first in range(0, len(tokens), 9):
            ids, *rows = model.pictures.arguments(np.array([tokens[first : first + 9]]))
            logits = program(ids, np.array([first]), *rows)
    return np.asarray(logits)[0]


def test_one_plan(exported: Exported[ModelSummary], model: LanguageModel) -> None:
    assert (2, ()) == (exported.lowered.partitions, exported.lowered.outside)
    assert exported.check and exported.check.difference < 1e-4
    assert model.runner.method.in_one_plan and 1 == len(model.program.method("vision").plans)


@pytest.mark.parametrize("split", [False, True])
def test_pixels(exported: Exported[ModelSummary], split: bool) -> None:
    spec = replace(exported.summary.card.vision, split=split)
    for picture in PICTURES:
        features = seeing.processor(split)(picture, return_tensors="np", return_row_col_info=True)
        tiles, down, across = pixels(picture, spec)
        np.testing.assert_array_equal(features.pixel_values[0], tiles)
        assert (features["rows"][0][0], features["cols"][0][0]) == (down, across)


@pytest.mark.parametrize("chunk", [None, 5])
def test_as_transformers(reference: Any, model: LanguageModel, chunk: int | None) -> None:
    tokens = model.encode(PROMPT, PICTURES[:1])
    logits, following = expected(reference, tokens, PICTURES[:1])
    close(logits_of(model, tokens), logits)
    model.runner.chunk = chunk or model.signature.chunk
    result = model.generate(PROMPT, pictures=PICTURES[:1], max_tokens=32, stop_tokens=[])
    assert following == result.tokens
    assert len(set(following)) > 10
    assert following != model.generate(PROMPT, pictures=PICTURES[1:2], max_tokens=32, stop_tokens=[]).tokens


def test_several_pictures(reference: Any, model: LanguageModel) -> None:
    prompt = "<image> w5 <image> <image> w6"
    tokens = model.encode(prompt, PICTURES[:3])
    assert (
        expected(reference, tokens, PICTURES[:3])[1]
        == model.generate(prompt, pictures=PICTURES[:3], max_tokens=32, stop_tokens=[]).tokens
    )
    again = model.encode("<image> w7", PICTURES[2:3])
    assert set(again) - {*range(seeing.VOCAB)} < set(tokens), "a picture keeps its ids in later prompts"


def test_chat(reference: Any, model: LanguageModel) -> None:
    conversation = model.chat(max_tokens=8)
    first = conversation.say("w1 w2", pictures=PICTURES[:1])
    text = "<|im_start|>User:<image>w1 w2<end_of_utterance>\nAssistant:"
    assert model.encode_chat([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "w1 w2"}]}],
                             PICTURES[:1]) == first.prompt_tokens  # fmt: skip
    assert model.pictures is not None
    assert model.pictures.encode(text, PICTURES[:1], model.tokenizer.encode_rendered) == first.prompt_tokens
    second = conversation.say("w3", pictures=PICTURES[1:2])
    assert second.timings.reused_tokens >= len(first.prompt_tokens)
    assert 4 == len(conversation.messages) and 2 == len(conversation.pictures)
    model.reset()
    assert second.tokens == model.generate(second.prompt_tokens, max_tokens=8).tokens
    _, following = expected(reference, second.prompt_tokens, PICTURES[:2])
    assert following[: len(second.tokens)] == second.tokens


def test_what_is_refused(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the prompt has 1 × <image>, and there are 2 pictures"):
        model.generate(PROMPT, pictures=PICTURES[:2])
    with pytest.raises(InvalidInput, match="pictures go with a text, not with tokens"):
        model.generate([1, 2], pictures=PICTURES[:1])
    with pytest.raises(InvalidInput, match=r"a picture is uint8 \(height, width, 3\), not float64 \(2, 2\)"):
        model.see(np.zeros((2, 2)))
    assert model.pictures is not None
    with pytest.raises(InvalidInput, match="is not in the model's vocabulary"):
        model.generate([model.pictures.end])
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    with pytest.raises(InvalidInput, match=r"a\.png is not a picture that Pillow can read"):
        model.see(tmp_path / "a.png")
    with pytest.raises(InvalidInput, match="is a folder"):
        model.see(tmp_path)
    with pytest.raises(FileNotFoundError):
        model.see(tmp_path / "no.png")


def test_numbers_and_marks(exported: Exported[ModelSummary]) -> None:
    vision = exported.summary.card.vision
    assert vision
    vision.check()
    for wrong in (
        {"size": -1},
        {"size": 1 << 20},
        {"mean": (math.inf, 0.5, 0.5)},
        {"std": (0.0, 1.0, 1.0)},
        {"mark": ""},
    ):
        with pytest.raises(ValueError, match=r"is|are"):
            replace(vision, **wrong).check()


def test_on_the_command_line(
    invoke: Invoke,  # noqa: F811
    exported: Exported[ModelSummary],
    model: LanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "picture.png"
    Image.fromarray(PICTURES[0]).save(path)
    ended = invoke("generate", exported.files[0], PROMPT, "--image", path, "--max-tokens", 9, "--json")
    assert model.generate(PROMPT, pictures=[path], max_tokens=9).tokens == ended.json()["tokens"]
    conversation = model.chat(max_tokens=9)
    answers = conversation.say("w1", pictures=[path]).text + "\n" + conversation.say("w2", pictures=[path]).text + "\n"
    chat = ("chat", exported.files[0], "--temperature", 0, "--max-tokens", 9)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"w1\n/image {path}\nw2\n"))
    assert (0, answers, "") == ((ended := invoke(*chat, "--image", path)).code, ended.out, ended.err)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"/image {tmp_path / 'no.png'}\n/image {__file__}\n"))
    missing, other = invoke(*chat).err.splitlines()
    assert missing.endswith("no.png: No such file or directory") and "is not a picture that Pillow can read" in other


def test_one_request_at_a_time(exported: Exported[ModelSummary], model: LanguageModel) -> None:
    with (
        pytest.warns(UserWarning, match="a program that sees pictures cannot serve several sequences at once"),
        BatchEngine(exported.files[0]) as engine,
    ):
        tokens = engine.encode_chat([{"role": "user", "content": "w1 w2"}])
        assert model.generate(tokens, max_tokens=6).tokens == engine.submit(tokens, {"max_tokens": 6}).wait().tokens


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "tied", "split", "options"),
    [
        ("idefics3", False, True, LlmOptions()),
        ("idefics3", True, False, LlmOptions()),
        ("smolvlm", True, True, LlmOptions(max_seq=16)),
    ],
)
def test_others(tmp_path: Path, kind: str, tied: bool, split: bool, options: LlmOptions) -> None:
    reference = seeing.model(kind, tied)
    exported = export_llm(seeing.save(reference, tmp_path, split), tmp_path / "model.pte", options)
    assert exported.check and exported.check.difference < 1e-4
    with LanguageModel(tmp_path / "model.pte") as model:
        tokens = model.encode(PROMPT, PICTURES[:1])
        logits, following = expected(reference, tokens, PICTURES[:1], split)
        close(logits_of(model, tokens), logits)
        assert following == model.generate(PROMPT, pictures=PICTURES[:1], max_tokens=32, stop_tokens=[]).tokens


@pytest.mark.heavy
def test_quantized_and_in_a_bundle(reference: Any, tmp_path: Path) -> None:
    from ptegpu import compile

    folder = seeing.save(reference, tmp_path)
    export_llm(folder, tmp_path / "model.pte", LlmOptions(quantize="4bit", max_seq=16))
    compile(tmp_path / "model.pte").save(tmp_path / "model.bundle")
    with LanguageModel(tmp_path / "model.pte") as model, LanguageModel(tmp_path / "model.bundle") as bundle:
        for pictures in ([], PICTURES[:1]):
            prompt = PROMPT if pictures else "w1 w2"
            result = model.generate(prompt, pictures=pictures, max_tokens=12)
            assert result.tokens == bundle.generate(prompt, pictures=pictures, max_tokens=12).tokens


def test_proposals_beside_pictures(model: LanguageModel) -> None:
    text = "w5 w6 w5 w6 <image> w5 w6 w5"
    plain = model.generate(text, pictures=PICTURES[:1], max_tokens=12, stop_tokens=())
    result = model.generate(text, pictures=PICTURES[:1], max_tokens=12, stop_tokens=(), speculate=2)
    assert plain.tokens == result.tokens
    assert result.speculation is not None and result.speculation.runs
    repeated = [*plain.prompt_tokens, *plain.tokens, *plain.prompt_tokens[-2:]]
    again = model.generate(repeated, max_tokens=12, stop_tokens=(), speculate=4)
    assert model.generate(repeated, max_tokens=12, stop_tokens=()).tokens == again.tokens
