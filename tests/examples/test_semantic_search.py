"""A small random encoder of MiniLM's make: the exported program and PyTorch give the same embeddings and neighbours."""

from __future__ import annotations

import importlib
import json
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cases import close, compare
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import ptegpu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXTS = (
    "Lentil soup costs very little.",
    "Tides",
    "The night train to Lisbon leaves at half past nine.",
    "A neural network learns by adjusting its weights to reduce its errors.",
    "",
    "Arctic terns fly from pole to pole every year.",
)
QUERIES = ("a cheap dinner", "travelling by rail", "naïve Bayes 分類器")


def example(name: str) -> ModuleType:
    """An example as Python finds it when it is run as a script: its folder comes first."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


search = example("semantic_search")
bert = example("bert")


LAYERS, WIDTH, INNER, HEADS = 2, 24, 40, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as MiniLM's: names, layout of weights, and a tokenizer of word pieces."""
    path = tmp_path_factory.mktemp("minilm")
    letters = [*string.ascii_letters, *".ï分"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece({piece: k for k, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "vocab_size": len(pieces), "max_position_embeddings": search.MAX_TOKENS, "hidden_size": WIDTH,
        "num_attention_heads": HEADS, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "layer_norm_eps": 1e-12,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    shapes = {
        "embeddings.word_embeddings.weight": (len(pieces), WIDTH),
        "embeddings.position_embeddings.weight": (search.MAX_TOKENS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    products = {
        **{f"attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")},
        "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (INNER, WIDTH),
        "output.dense": (WIDTH, INNER),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{n}" for n in range(LAYERS)):
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        for name, shape in products.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    shapes |= {f"{name}.{kind}": (WIDTH,) for name in norms for kind in ("weight", "bias")}
    rng = torch.Generator().manual_seed(0)
    save_file(
        {name: 0.5 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}, path / "model.safetensors"
    )
    return path


@pytest.fixture(scope="module")
def encoder(folder: Path) -> torch.nn.Module:
    return bert.from_checkpoint(folder)


@pytest.fixture(scope="module")
def pte(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "minilm.pte"
    search.export_to(path, folder)
    return path


@pytest.fixture(scope="module")
def searcher(pte: Path, folder: Path) -> Iterator[search.Searcher]:
    with ptegpu.load(pte) as program:
        yield search.Searcher(program, search.load_tokenizer(folder))


@pytest.fixture(scope="module")
def embedded(searcher: search.Searcher) -> np.ndarray:
    return searcher.embed(TEXTS)


def eager(encoder: torch.nn.Module, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return encoder(torch.from_numpy(tokens), torch.from_numpy(mask)).numpy()


def assert_same_vectors(expected: np.ndarray, actual: np.ndarray) -> None:
    close(actual, expected)
    assert (expected * actual).sum(-1).min() >= 0.9999
    np.testing.assert_allclose(1, np.linalg.norm(actual, axis=-1), atol=1e-5)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 20), (1, 256), (16, 2)])
def test_embeddings_of_any_batch_and_length_are_pytorchs(
    searcher: search.Searcher, encoder: torch.nn.Module, batch: int, length: int
) -> None:
    rng = np.random.default_rng(length)
    tokens = rng.integers(4, 100, (batch, length))
    mask = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int64)
    mask[0] = 1
    assert_same_vectors(eager(encoder, tokens, mask), searcher.forward(tokens, mask))
    assert 1 == len(searcher.forward.plans)


def test_padding_leaves_an_embedding_as_it_is(
    searcher: search.Searcher, encoder: torch.nn.Module, embedded: np.ndarray
) -> None:
    ids = [encoded.ids for encoded in searcher.tokenizer.encode_batch(list(TEXTS))]
    alone = [eager(encoder, np.array([row]), np.ones((1, len(row)), np.int64))[0] for row in ids]
    assert_same_vectors(np.stack(alone), embedded)


def test_nearest_neighbours_are_pytorchs(
    searcher: search.Searcher, encoder: torch.nn.Module, embedded: np.ndarray
) -> None:
    ids = [encoded.ids for encoded in searcher.tokenizer.encode_batch([*TEXTS, *QUERIES])]
    vectors = eager(encoder, *search.padded(ids))
    scores = vectors[len(TEXTS) :] @ vectors[: len(TEXTS)].T  # (queries, texts)
    for query, row in zip(QUERIES, scores, strict=True):
        hits = searcher.rank(query, TEXTS, embedded, len(TEXTS))
        assert [TEXTS[k] for k in np.argsort(-row)] == [hit.text for hit in hits]
        compare(np.array([hit.score for hit in hits]), np.sort(row)[::-1], 1e-5, "scores")


def test_a_text_that_is_too_long_is_cut(searcher: search.Searcher) -> None:
    assert 256 == len(searcher.tokenizer.encode("word " * 300).ids)


def test_texts_are_padded_to_one_length() -> None:
    tokens, mask = search.padded([[5, 6, 7], [8] * 9])
    assert [[5, 6, 7, *[0] * 13], [*[8] * 9, *[0] * 7]] == tokens.tolist()
    assert [[1, 1, 1, *[0] * 13], [*[1] * 9, *[0] * 7]] == mask.tolist()


def test_the_command_line_answers(pte: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{TEXTS[1]}\n\n  {TEXTS[0]}\n", "utf-8")
    where = ["--model", str(folder), "--pte", str(pte), "--corpus", str(corpus)]
    assert 0 == search.main([*where, "--top", "1", "--json", TEXTS[0]])
    found = json.loads(capsys.readouterr().out)
    assert (2, 1) == (found["texts"], found["plans"])
    answer = found["queries"][0]
    assert [TEXTS[0], TEXTS[0]] == [answer["query"], *(hit["text"] for hit in answer["results"])]
    search.report(found)
    printed = capsys.readouterr().out.splitlines()
    assert [TEXTS[0], f"   {answer['results'][0]['score']:.3f}  {TEXTS[0]}"] == printed[:2]
    assert printed[-1].startswith(found["device"])
    assert printed[-1].endswith(f"{found['dispatches']} dispatches")


def test_what_is_missing_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    assert 1 == search.main(["--corpus", str(empty)])
    message = f"error: {empty} has no text in it; give a text file with one text per line\n"
    assert message == capsys.readouterr().err
    assert 1 == search.main(["--corpus", str(tmp_path)])
    assert f"error: {tmp_path} is no file; give a text file with one text per line\n" == capsys.readouterr().err
    model = ["--model", str(folder)]
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    made = tmp_path / "new.pte"
    assert 1 == search.main([*model, "--pte", str(made)])
    message = f'safetensors.torch is not installed, and {made} must be made; do: pip install "ptegpu[export,llm]"\n'
    assert capsys.readouterr().err.endswith(f"error: {message}")
    assert not made.exists()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert 1 == search.main(model)
    assert 'error: tokenizers is not installed; do: pip install "ptegpu[llm]"\n' == capsys.readouterr().err
    assert 1 == search.main(["--model", str(tmp_path)])
    files = "config.json, model.safetensors, tokenizer.json"
    message = f"there is no {tmp_path / 'config.json'}; put {files} of all-MiniLM-L6-v2 into one folder"
    assert f"error: {message}\n" == capsys.readouterr().err
