"""The semantic search example, with a small random encoder: it finds the same neighbours as PyTorch."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import transformers
from tests import zoo

import ptegpu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXTS = ("the cat sat on a red mat.", "a dog runs", "who is bad", "a good film.", "", "the blue dog sat on the cat")
QUERIES = ("where is the cat", "good film", "naïve 分類器")


def example(name: str) -> ModuleType:
    """Import an example as a script would: with its folder first on the path."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


search = example("semantic_search")


@pytest.fixture(scope="module")
def folder() -> Path:
    return zoo.folder("tasks", "bert")


@pytest.fixture(scope="module")
def pte(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "minilm.pte"
    search.export_to(path, folder)
    return path


@pytest.fixture(scope="module")
def searcher(pte: Path) -> Iterator[search.Searcher]:
    with ptegpu.pipeline(pte) as pipe:
        yield search.Searcher(pipe)


@torch.no_grad()
def eager(folder: Path, texts: tuple[str, ...]) -> np.ndarray:
    """Return PyTorch's embeddings, computed one text at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1)[0] for text in texts]
    return torch.nn.functional.normalize(torch.stack(states)).numpy()


def test_embeddings_and_nearest_neighbours_are_pytorchs(searcher: search.Searcher, folder: Path) -> None:
    expected, embedded = eager(folder, TEXTS), searcher.embed(TEXTS)
    np.testing.assert_allclose(expected, embedded, atol=1e-5)
    scores = eager(folder, QUERIES) @ expected.T  # (queries, texts)
    for query, row in zip(QUERIES, scores, strict=True):
        hits = searcher.rank(query, TEXTS, embedded, len(TEXTS))
        assert [TEXTS[k] for k in np.argsort(-row)] == [hit.text for hit in hits]
        np.testing.assert_allclose(np.sort(row)[::-1], [hit.score for hit in hits], atol=1e-5)


def test_the_command_line_answers(pte: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{TEXTS[1]}\n\n  {TEXTS[0]}\n", "utf-8")
    assert 0 == search.main(["--pte", str(pte), "--corpus", str(corpus), "--top", "1", "--json", TEXTS[0]])
    report = json.loads(capsys.readouterr().out)
    assert (2, 1) == (report["texts"], report["plans"])
    answer = report["queries"][0]
    assert [TEXTS[0], TEXTS[0]] == [answer["query"], *(hit["text"] for hit in answer["results"])]
    search.report(report)
    printed = capsys.readouterr().out.splitlines()
    assert [TEXTS[0], f"   {answer['results'][0]['score']:.3f}  {TEXTS[0]}"] == printed[:2]
    assert printed[-1].startswith(report["device"])
    assert printed[-1].endswith(f"{report['dispatches']} dispatches")


def test_what_is_missing_is_said(
    pte: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    assert 1 == search.main(["--corpus", str(empty)])
    message = f"error: {empty} is empty: pass a text file with one text per line\n"
    assert message == capsys.readouterr().err
    assert 1 == search.main(["--corpus", str(tmp_path)])
    assert f"error: {tmp_path} is not a file: pass a text file with one text per line\n" == capsys.readouterr().err
    assert 1 == search.main(["--model", str(tmp_path), "--pte", str(tmp_path / "new.pte")])
    message = f"missing file {tmp_path / 'config.json'}: pass the folder of all-MiniLM-L6-v2"
    assert capsys.readouterr().err.endswith(f"error: {message}\n")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert 1 == search.main(["--pte", str(pte)])
    assert 'error: tokenizers is not installed: run pip install "ptegpu[hf]"\n' == capsys.readouterr().err
