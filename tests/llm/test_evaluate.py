"""Perplexity: windows that score every token once, and the result compared with PyTorch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import compare
from tests.zoo import checkpoints
from tests.zoo.language import TinyLM
from tests.zoo.words import TEXT

from ptegpu.errors import InvalidInput
from ptegpu.export.reference import Reference
from ptegpu.models.text import LanguageModel, evaluate
from ptegpu.models.text.perplexity import windows


@given(st.integers(2, 200), st.integers(2, 50), st.data())
def test_every_token_but_the_first_is_scored_once(count: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, size - 1))
    spans = list(windows(count, size, stride))
    assert list(range(1, count)) == [k for w in spans for k in range(w.first, w.end)]
    assert all(w.end - w.begin <= size and w.begin < w.first for w in spans)


@pytest.mark.parametrize("which", ["model", "every"])
@pytest.mark.parametrize(("size", "stride"), [(32, None), (24, 23), (64, 5)])
def test_perplexity_is_that_of_pytorch(
    which: str, size: int, stride: int | None, eager: TinyLM, text: tokenizers.Tokenizer,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    tokens = text.encode(" ".join(TEXT)).ids[:130]
    nats = 0.0
    for w in windows(len(tokens), size, stride or size // 2):
        logits = torch.log_softmax(eager.logits(tokens[w.begin : w.end]).double(), -1)
        nats -= sum(float(logits[k - 1 - w.begin, tokens[k]]) for k in range(w.first, w.end))
    progress: list[tuple[int, int]] = []
    result = evaluate(request.getfixturevalue(which), tokens, 400, size, stride, lambda *at: progress.append(at))
    assert math.isclose(math.exp(nats / 129), result.perplexity, rel_tol=1e-5)
    assert math.isclose(nats / math.log(2) / 400, result.bits_per_byte, rel_tol=1e-5)
    assert (130, 129) == (result.tokens, result.scored)
    assert (129, 129) == progress[-1] and len(progress) == result.windows


def test_what_cannot_be_evaluated(model: LanguageModel) -> None:
    for size, stride, sizes in ((1, 1, "1 tokens with a stride of 1"), (8, 8, "8 tokens with a stride of 8")):
        with pytest.raises(InvalidInput) as error:
            evaluate(model, [5, 6, 7], 3, size, stride)
        assert f"a window of {sizes} does not work: 2 ≤ window, 1 ≤ stride < window" == str(error.value)
    with pytest.raises(InvalidInput) as error:
        evaluate(model, [5], 3)
    assert "the text has 1 tokens, at least 2 are needed" == str(error.value)


def test_the_reference_scores_as_transformers_does(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, "qwen3")
    logits = torch.log_softmax(torch.from_numpy(checkpoints.by_transformers(folder)).double(), -1)
    want = np.array([float(logits[k, t]) for k, t in enumerate(checkpoints.TOKENS[1:])])
    reference = Reference(folder, 32)
    compare(reference.score(checkpoints.TOKENS), want, 1e-5, "scores")
    compare(reference.score(checkpoints.TOKENS, 5), want[4:], 1e-5, "scores")
    assert 0.01 < np.abs(Reference(folder, 32, quantize="4bit").score(checkpoints.TOKENS) - want).max() < 3
