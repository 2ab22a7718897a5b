"""`export hf`: from a folder to an answer, held to transformers; what is refused, and in which words."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from tests.cli.conftest import Invoke, invoke  # noqa: F401 (a fixture)
from tests.zoo.tasks import MODELS, write

import ptegpu
from ptegpu.errors import ExportError
from ptegpu.export import Bounds, export_hf, wrapped
from ptegpu.export.hf import load_model
from ptegpu.export.hf_processing import read_processing
from ptegpu.export.hf_sentences import read_pooling
from ptegpu.models.tasks.results import TaskOutput, labels
from ptegpu.site import VARIANTS, make_site

TEXTS = ["the cat sat on a red mat.", "who runs"]
CONTEXT = "the cat sat on a red mat. a dog runs"
CLOSE = 2e-4


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    blocks = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)
    Image.fromarray(blocks).resize((120, 90)).save(tmp_path / "p.png")
    return tmp_path / "p.png"


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(-9000, 9000, (16_000, 2)).astype("<i2")
    with wave.open(str(tmp_path / "s.wav"), "wb") as file:
        file.setparams((2, 2, 16_000, 0, "NONE", ""))
        file.writeframes(noise.tobytes())
    return tmp_path / "s.wav"


def auto(name: str, folder: Path) -> Any:
    return getattr(transformers, name).from_pretrained(folder, local_files_only=True)


@torch.no_grad()
def text_outputs(folder: Path, kind: str, *texts: Any) -> Any:
    inputs = auto("AutoTokenizer", folder)(*texts, return_tensors="pt", padding=True)
    return auto(kind, folder)(**inputs), inputs


@torch.no_grad()
def image_outputs(folder: Path, kind: str, picture: Path) -> Any:
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True)
    return auto(kind, folder)(**processor(images=Image.open(picture), return_tensors="pt"))


@torch.no_grad()
def sound_outputs(folder: Path, kind: str, path: Path) -> Any:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
    extractor = auto("AutoFeatureExtractor", folder)
    x = (samples.astype(np.float32) / 32768).mean(1)
    return auto(kind, folder)(**extractor(x, sampling_rate=16_000, return_tensors="pt"))


def probabilities(logits: torch.Tensor) -> dict[str, float]:
    return dict(zip(("bad", "fair", "good"), logits.softmax(-1).tolist()))


def scores(labels: Any) -> dict[str, float]:
    return {actual.label: actual.score for actual in labels}


def exported(tmp_path: Path, name: str, **options: Any) -> tuple[Path, Path, Any]:
    folder, path = write(tmp_path / "folder", name), tmp_path / f"{name}.pte"
    account = export_hf(folder, path, delegate=False, **options)
    assert account.difference is not None
    assert ["Reading weights", "Tracing", "Lowering", "Checking", "Writing"] == list(account.seconds)
    return folder, path, account


def test_sentences_in_one_command_each(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    folder, path = write(tmp_path / "folder", "minilm"), tmp_path / "minilm.pte"
    ended = invoke("export", "hf", folder, "-o", path, "--no-delegate")
    assert (0, "") == (ended.code, ended.err)
    lines = ended.out.splitlines()
    assert "  model       BertModel, 12,576 parameters, for sentence-embedding" == lines[1]
    assert "  takes       texts of up to 32 tokens, up to 8 at once" == lines[2]
    assert "  files       minilm.pte, minilm.tokenizer.json" in lines
    outputs, inputs = text_outputs(folder, "AutoModel", TEXTS)
    real = inputs["attention_mask"][:, :, None].float()
    pooled = (outputs.last_hidden_state * real).sum(1) / real.sum(1)
    expected = torch.nn.functional.normalize(pooled).numpy()
    options = [part for text in TEXTS for part in ("--text", text)]
    results = invoke("run", path, *options, "--json").json()["results"]
    assert TEXTS == [r["input"] for r in results]
    np.testing.assert_allclose(expected, [r["embedding"] for r in results], atol=CLOSE)
    shown = invoke("run", path, "--text", TEXTS[0])
    assert "minilm.pte · sentence-embedding on " in shown.out and "\n32 · from " in shown.out
    with ptegpu.pipeline(path) as pipe:
        np.testing.assert_allclose(expected, pipe(TEXTS * 5)[:2], atol=CLOSE)
        assert 1 == len(pipe.program.method("forward").plans)
        with pytest.raises(ptegpu.InvalidInput, match="this program is for sentence-embedding: it takes text"):
            pipe(image="p.png")
    site = make_site(path, tmp_path / "site", targets=[VARIANTS["generic"]], check=False)
    description = json.loads((site.folder / "site.json").read_text())
    assert ("task", 32) == (description["page"], description["task"]["text"]["length"])
    assert {"tokenizer.json", "tokenizers.js", "task.js"} <= {f.name for f in site.files}
    wrong = invoke("run", path, "--image", "p.png")
    assert "error: this program is for sentence-embedding: it takes --text, not --image\n" == wrong.err


def test_pictures_in_one_command_each(invoke: Invoke, tmp_path: Path, picture: Path) -> None:  # noqa: F811
    folder, path = write(tmp_path / "folder", "vit"), tmp_path / "vit.pte"
    account = invoke("export", "hf", folder, "-o", path, "--no-delegate", "--json").json()
    assert "image-classification" == account["card"]["task"] and [] == account["notes"]
    expected = probabilities(image_outputs(folder, "AutoModelForImageClassification", picture).logits[0])
    actual = invoke("run", path, "--image", picture, "--json").json()["results"][0]["labels"]
    assert expected == pytest.approx({r["label"]: r["score"] for r in actual}, abs=CLOSE)
    shown = invoke("run", path, "--image", picture, "--top", 1)
    best = max(expected, key=lambda name: expected[name])
    assert [best, f"{100 * expected[best]:.1f}", "%"] == shown.out.splitlines()[4].split()[:3]
    missing = invoke("run", path, "--image", tmp_path / "none.png")
    assert f"error: {tmp_path / 'none.png'}: No such file or directory\n" == missing.err
    other = invoke("run", path, "--image", folder / "config.json")
    assert f"error: {folder / 'config.json'} is not a picture" in other.err


@pytest.mark.heavy
def test_sounds_of_any_length(tmp_path: Path, sound: Path, invoke: Invoke) -> None:  # noqa: F811
    folder, path, account = exported(tmp_path, "hubert", bounds=Bounds(seconds=0.9))
    assert (120, 14_400) == (account.summary.card.audio.least, account.summary.card.audio.most)
    with wave.open(str(sound)) as file:
        samples = np.frombuffer(file.readframes(14_400), "<i2").reshape(-1, 2)
    short = tmp_path / "short.wav"
    with wave.open(str(short), "wb") as file:
        file.setparams((2, 2, 16_000, 0, "NONE", ""))
        file.writeframes(samples[:9000].tobytes())
    expected = probabilities(sound_outputs(folder, "AutoModelForAudioClassification", short).logits[0])
    actual = invoke("run", path, "--audio", short, "--json").json()["results"][0]["labels"]
    assert expected == pytest.approx({r["label"]: r["score"] for r in actual}, abs=CLOSE)
    long = invoke("run", path, "--audio", sound)
    assert "s.wav lasts 1 s; only the first 900 ms are used" in long.err


@pytest.mark.heavy
@pytest.mark.parametrize("delegate", [False, True])
def test_labels_of_texts(tmp_path: Path, delegate: bool) -> None:
    folder, path = write(tmp_path / "folder", "roberta"), tmp_path / "m.pte"
    assert 62 < export_hf(folder, path, delegate=delegate).summary.card.text.length  # type: ignore[union-attr]
    logits = text_outputs(folder, "AutoModelForSequenceClassification", TEXTS)[0].logits
    with ptegpu.pipeline(path) as pipe:
        for actual, expected in zip(pipe(TEXTS), logits):
            assert probabilities(expected) == pytest.approx(scores(actual), abs=CLOSE)


@pytest.mark.heavy
def test_a_regression_gives_its_outputs_themselves(tmp_path: Path, invoke: Invoke) -> None:  # noqa: F811
    folder, path, account = exported(tmp_path, "regression")
    assert (True, False) == (account.summary.card.regression, account.summary.card.many)
    value = text_outputs(folder, "AutoModelForSequenceClassification", TEXTS[:1])[0].logits.item()
    actual = invoke("run", path, "--text", TEXTS[0], "--json").json()["results"][0]["labels"]
    assert [("LABEL_0", pytest.approx(value, abs=CLOSE))] == [(r["label"], r["score"]) for r in actual]
    assert not 0 <= value <= 1 and "%" not in invoke("run", path, "--text", TEXTS[0]).out


@pytest.mark.heavy
def test_labels_of_tokens(tmp_path: Path) -> None:
    folder, path, _ = exported(tmp_path, "tokens")
    logits = text_outputs(folder, "AutoModelForTokenClassification", TEXTS)[0].logits
    with ptegpu.pipeline(path) as pipe:
        actual = pipe(TEXTS[0])
    assert ["the", "cat", "sat", "on", "a", "red", "mat", "."] == [s.text for s in actual]
    expected = logits[0, 1:9].softmax(-1).max(-1)
    np.testing.assert_allclose(expected.values, [s.score for s in actual], atol=CLOSE)
    assert [("bad", "fair", "good")[k] for k in expected.indices] == [s.label for s in actual]


@pytest.mark.heavy
def test_answers(tmp_path: Path) -> None:
    folder, path, _ = exported(tmp_path, "questions")
    outputs, inputs = text_outputs(folder, "AutoModelForQuestionAnswering", "who runs", CONTEXT)
    inside = inputs["token_type_ids"][0].bool()
    inside[-1] = False
    parts = [y[0].masked_fill(~inside, -torch.inf).softmax(-1) for y in (outputs.start_logits, outputs.end_logits)]
    best = torch.triu(parts[0][:, None] * parts[1]).max().item()
    with ptegpu.pipeline(path) as pipe:
        actual = pipe("who runs", context=CONTEXT)
        assert CONTEXT[actual.start : actual.end] == actual.text and best == pytest.approx(actual.score, rel=1e-3)
        with pytest.raises(ptegpu.InvalidInput, match="question-answering takes a context to answer from"):
            pipe("who runs")


@pytest.mark.heavy
def test_masks(tmp_path: Path) -> None:
    folder, path, _ = exported(tmp_path, "masks")
    outputs, _ = text_outputs(folder, "AutoModelForMaskedLM", "the [MASK] sat")
    parts = outputs.logits[0, 2].softmax(-1)
    with ptegpu.pipeline(path) as pipe:
        actual = pipe("the [MASK] sat", top=3)
        np.testing.assert_allclose(parts.topk(3).values, [w.score for w in actual], atol=CLOSE)
        with pytest.raises(ptegpu.InvalidInput, match=r"there are 0 masks in the text; write \[MASK\] once"):
            pipe("the cat sat")


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["deit", "convnext"])
def test_pictures_that_are_cropped(tmp_path: Path, picture: Path, name: str) -> None:
    folder, path, account = exported(tmp_path, name)
    assert [] == account.notes
    expected = probabilities(image_outputs(folder, "AutoModelForImageClassification", picture).logits[0])
    with ptegpu.pipeline(path) as pipe:
        assert expected == pytest.approx(scores(pipe(picture)), abs=CLOSE)


@pytest.mark.heavy
def test_segments(tmp_path: Path, picture: Path, invoke: Invoke) -> None:  # noqa: F811
    folder, path, _ = exported(tmp_path, "segformer")
    logits = image_outputs(folder, "AutoModelForSemanticSegmentation", picture).logits
    expected = torch.nn.functional.interpolate(logits, size=(90, 120), mode="bilinear").argmax(1)[0].numpy()
    with ptegpu.pipeline(path) as pipe:
        actual = pipe(picture)
    assert (90, 120) == actual.shape and (actual == expected).mean() > 0.99
    shown = invoke("run", path, "--image", picture, "--out", tmp_path / "o.png")
    assert "120×90 pixels" in shown.out and f"wrote {tmp_path / 'o.png'}" in shown.out
    assert (120, 90) == Image.open(tmp_path / "o.png").size


@pytest.mark.heavy
def test_depths(tmp_path: Path, picture: Path, invoke: Invoke) -> None:  # noqa: F811
    folder, path, _ = exported(tmp_path, "depth")
    depth = image_outputs(folder, "AutoModelForDepthEstimation", picture).predicted_depth
    expected = torch.nn.functional.interpolate(depth[:, None], size=(90, 120), mode="bilinear")[0, 0].numpy()
    with ptegpu.pipeline(path) as pipe:
        np.testing.assert_allclose(expected, pipe(picture), atol=1e-3 * np.abs(expected).max())
    invoke("run", path, "--image", picture, "--out", tmp_path / "o.png")
    assert (120, 90) == Image.open(tmp_path / "o.png").size


@pytest.mark.heavy
def test_speech(tmp_path: Path, sound: Path) -> None:
    folder, path, _ = exported(tmp_path, "wav2vec2")
    best = sound_outputs(folder, "AutoModelForCTC", sound).logits[0].argmax(-1).tolist()
    tokens = [token for k, token in enumerate(best) if k == 0 or token != best[k - 1]]
    text = "".join(" ABC"[token - 4] for token in tokens if token >= 4)
    with ptegpu.pipeline(path) as pipe:
        assert " ".join(text.split()) == pipe(sound)


@pytest.mark.heavy
def test_spectrograms(tmp_path: Path, sound: Path) -> None:
    folder, path, account = exported(tmp_path, "ast")
    assert "fbank" == account.summary.card.audio.features and [] == account.notes
    expected = probabilities(sound_outputs(folder, "AutoModelForAudioClassification", sound).logits[0])
    with ptegpu.pipeline(path) as pipe:
        assert expected == pytest.approx(scores(pipe(sound)), abs=1e-3)


@pytest.mark.heavy
@torch.no_grad()
def test_texts_that_describe_a_picture(tmp_path: Path, picture: Path) -> None:
    folder, path, _ = exported(tmp_path, "clip")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True)
    pixels = processor(images=Image.open(picture), return_tensors="pt")
    tokens = auto("AutoTokenizer", folder)(TEXTS, return_tensors="pt", padding="max_length", max_length=16)
    tokens.pop("token_type_ids", None)
    logits = auto("AutoModel", folder)(**tokens, **pixels).logits_per_image[0]
    with ptegpu.pipeline(path) as pipe:
        actual = scores(pipe(image=picture, text=TEXTS))
    assert dict(zip(TEXTS, logits.softmax(-1).tolist())) == pytest.approx(actual, abs=CLOSE)


@pytest.mark.heavy
def test_a_decoder_is_handed_over(tmp_path: Path, invoke: Invoke) -> None:  # noqa: F811
    folder = write(tmp_path / "folder", "llama")
    account = invoke("export", "hf", folder, "-o", tmp_path / "m.pte", "--json").json()
    assert "llama" == account["family"]


def changed(folder: Path, **settings: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hidden_layers": 10**9}, "config.json: num_hidden_layers is 1,000,000,000, but there are 23 tensors"),
        ({"vocab_size": 10**10}, "config.json asks for 320,000,011,776 parameters"),
        ({"intermediate_size": 1 << 50}, "config.json: intermediate_size is 1,125,899,906,842,624"),
        ({"num_labels": 10**8}, "config.json: num_labels is 100,000,000, but no tensor has more than 64 rows"),
        ({"text_config": {"num_labels": 10**8}}, "config.json: num_labels is 100,000,000"),
        (
            {"id2label": dict.fromkeys(map(str, range(70_000)), "a")},
            "config.json: the length of id2label is 70,000, but",
        ),
        ({"attn_implementation": "x/kernel"}, "config.json: attn_implementation is 'x/kernel', which may come from a"),
        ({"_attn_implementation": "flash_attention_2"}, "config.json: _attn_implementation is 'flash_attention_2'"),
        ({"attn_implementation": {"": "x/kernel"}}, "config.json: attn_implementation is 'x/kernel'"),
        ({"backbone": "x/y"}, "config.json: backbone is 'x/y', which is not in the folder; give backbone_config"),
        ({"vision_config": {"backbone": "x/y", "backbone_config": None}}, "config.json: backbone is 'x/y'"),
        ({"quantization_config": {"quant_method": "awq"}}, "BertModel is quantized"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration has no task"),
        ({"architectures": ["os.system"]}, "os.system has no task that can be exported"),
        ({"model_type": "none", "auto_map": {"AutoConfig": "evil.Config"}}, "cannot be built for"),
        ({"num_hidden_layers": 2}, "BertModel lacks the weights encoder.layer.1"),
    ],
)
def test_what_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = changed(write(tmp_path / "folder", "bert"), **settings)
    (folder / "evil.py").write_text("raise SystemExit('run')")
    with pytest.raises(ExportError) as refused:
        load_model(folder)
    assert message in str(refused.value) and 1 == len(str(refused.value).splitlines())


def test_a_model_without_a_head_may_name_labels(tmp_path: Path) -> None:
    settings = {"id2label": {str(k): f"label {k}" for k in range(1000)}, "attn_implementation": "sdpa"}
    assert 12576 == load_model(changed(write(tmp_path / "folder", "bert"), **settings))[2]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("regression", {}, 2.681),
        ("regression", {"problem_type": None}, 0.936),
        ("regression", {"problem_type": "multi_label_classification"}, 0.936),
        ("vit", {"problem_type": "regression"}, 2.681),
        ("vit", {}, 1.0),
    ],
)
def test_scores_are_what_the_config_says(tmp_path: Path, name: str, settings: dict[str, Any], expected: float) -> None:
    folder = changed(write(tmp_path / "folder", name), **settings)
    model, task, _ = load_model(folder)
    card = read_processing(folder, folder, model, task, Bounds()).card
    assert expected == pytest.approx(labels(TaskOutput([np.float32([2.681])], card))[0].score, abs=1e-3)


def test_weights_are_safetensors_inside_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", "bert")
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(
        ExportError, match=r"there are no \*\.safetensors files; pytorch_model\.bin has an older format"
    ):
        load_model(folder)
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(ExportError, match="leads out of its folder"):
        load_model(folder)
    with pytest.raises(ExportError, match=r"has no config.json: give the folder of a Hugging Face checkpoint"):
        load_model(tmp_path)


def test_another_task_needs_its_weights(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", "masks")
    model, task, _ = load_model(folder, "feature-extraction")  # without its pooler, which nothing reads
    assert ("BertModel", "feature-extraction") == (type(model).__name__, task)
    with pytest.raises(ExportError, match=r"BertForTokenClassification lacks the weights classifier\.bias"):
        load_model(folder, "token-classification")
    with pytest.raises(ExportError, match="cannot be built for depth-estimation"):
        load_model(folder, "depth-estimation")
    with pytest.raises(ExportError, match="invalid task 'poetry': expected one of feature-extraction, "):
        export_hf(folder, tmp_path / "m.pte", task="poetry")  # type: ignore[arg-type]


def test_sentences_are_pooled_as_modules_json_says(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", "minilm")
    hidden, mask = torch.randn(2, 4, 32), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    weight, bias = torch.randn(6, 32), torch.randn(6)
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    (folder / "2_Dense" / "config.json").write_text('{"activation_function": "torch.nn.modules.activation.Tanh"}')
    listed = [*json.loads((folder / "modules.json").read_text())[:2], {"path": "2_Dense", "type": "x.Dense"}]
    (folder / "modules.json").write_text(json.dumps(listed))
    pools = {
        "cls_token": hidden[:, 0],
        "max_tokens": torch.stack([hidden[0].amax(0), hidden[1, :2].amax(0)]),
        "mean_tokens": torch.stack([hidden[0].mean(0), hidden[1, :2].mean(0)]),
    }
    for name, pooled in pools.items():
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{name}": True}))
        torch.testing.assert_close(torch.tanh(pooled @ weight.T + bias), read_pooling(folder)(hidden, mask))
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with pytest.raises(ExportError, match="invalid pooling lasttoken: expected one of cls, mean, max"):
        read_pooling(folder)
    (folder / "modules.json").write_text(json.dumps([*listed[:2], {"path": "../..", "type": "x.Dense"}]))
    with pytest.raises(ExportError, match="leads out of its folder"):
        read_pooling(folder)
    (folder / "modules.json").write_text("[1]")
    with pytest.raises(ExportError, match=r"modules\.json is not a list of modules"):
        read_pooling(folder)


def test_every_task_is_wrapped() -> None:
    for name, make in MODELS.items():
        if name != "llama":
            model, _ = make()
            task = "zero-shot-image-classification" if name == "clip" else None
            module, args, shapes = wrapped(model, task)
            assert len(args) == len(shapes)
            with torch.no_grad():
                module(*args)
