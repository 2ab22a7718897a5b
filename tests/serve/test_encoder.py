"""Encoder programs with and without a mask, with a vector for each text or for each token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tests.exporting import export

from ptegpu.errors import DeviceLost, IndexOutOfRange, UnsupportedProgram
from ptegpu.models.door import ProgramSource
from ptegpu.runtime import LoadOptions
from ptegpu.serve import Embeds, Writes
from ptegpu.serve.encoder import EmbeddingEngine

WORDS = ["the", "fox", "and", "owl", "sleeps"]
TEXTS = ["the fox", "the owl and the fox", "owl"]


class Bag(torch.nn.Module):
    def __init__(self, pooled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(len(WORDS), 4)
        self.pooled = pooled

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.table(tokens)
        if not self.pooled:
            return rows
        weights = torch.ones_like(rows) if mask is None else mask.to(torch.float32)[:, :, None]
        return (rows * weights).sum(1) / weights.sum(1)


def encoder(folder: Path, masked: bool, pooled: bool, dynamic: bool = True) -> tuple[EmbeddingEngine, np.ndarray]:
    """Return an encoder and its expected rows for TEXTS."""
    module, tokens = Bag(pooled), torch.zeros(3, 6, dtype=torch.int64)
    sizes = {0: torch.export.Dim("b", min=1, max=3), 1: torch.export.Dim("s", min=1, max=6)}
    inputs = (tokens, torch.ones_like(tokens)) if masked else (tokens,)
    shapes = (sizes, sizes) if masked else (sizes,)
    path = folder / "bag.pte"
    path.write_bytes(export(module, inputs, dynamic_shapes=shapes if dynamic else None))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: k for k, w in enumerate(WORDS)}, "the"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "bag.tokenizer.json"))
    (folder / "bag.tokenizer_config.json").write_text(json.dumps({}))
    table = module.table.weight.detach().numpy()
    means = np.stack([table[[WORDS.index(w) for w in text.split()]].mean(0) for text in TEXTS])
    return EmbeddingEngine(ProgramSource.of(path), "bag", LoadOptions()), means / np.linalg.norm(
        means, axis=1, keepdims=True
    )


@pytest.mark.parametrize(
    ("masked", "pooled", "dynamic"), [(True, True, True), (True, False, False), (False, True, True)]
)
def test_texts_of_any_length(tmp_path: Path, masked: bool, pooled: bool, dynamic: bool) -> None:
    engine, expected = encoder(tmp_path, masked, pooled, dynamic)
    assert (6, True, False) == (engine.model.context, isinstance(engine, Embeds), isinstance(engine, Writes))
    prompts = [engine.encode(text) for text in TEXTS]
    np.testing.assert_allclose(engine.embed([*prompts, prompts[0]]), [*expected, expected[0]], atol=1e-5)
    with pytest.raises(IndexOutOfRange):
        engine.embed([[0, 99]])
    np.testing.assert_allclose(engine.embed(prompts[:1]), expected[:1], atol=1e-5)
    engine.close()


def test_a_lost_gpu_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(texts: Any) -> Any:
        raise DeviceLost("it is gone")

    engine, _ = encoder(tmp_path, masked=True, pooled=True)
    assert "" == engine.stats().error
    monkeypatch.setattr(engine, "_run", lost)
    with pytest.raises(DeviceLost, match="it is gone"):
        engine.embed([[1]])
    assert "it is gone" == engine.stats().error
    engine.close()


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedProgram, match="not an encoder: it takes tokens of one length only, and no mask"):
        encoder(tmp_path, masked=False, pooled=False, dynamic=False)
