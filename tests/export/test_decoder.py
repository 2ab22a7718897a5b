"""Every family, in eager PyTorch, against the logits that transformers computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cases import close
from tests.export.checkpoints import CONFIGS, TOKENS, golden, write

from ptegpu.export import Options, load_decoder
from ptegpu.export.config import read_config
from ptegpu.export.decoder import Decoder


def logits(decoder: Decoder, chunks: list[int]) -> np.ndarray:
    """Of all of `TOKENS`, (S, V), read in chunks of these sizes."""
    found, first = [], 0
    with torch.no_grad():
        for count in chunks:
            found.append(decoder(torch.tensor([TOKENS[first : first + count]]), torch.tensor([first]))[0])
            first += count
    return torch.cat(found).numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_as_transformers(name: str, tmp_path: Path) -> None:
    decoder, _, parameters = load_decoder(write(tmp_path, name, shards=2), Options(all_logits=True))
    expected = golden(name)
    close(logits(decoder, [12]), expected)
    decoder.reset()
    close(logits(decoder, [5, 1, 6]), expected)
    assert parameters == sum(p.numel() for p in set(decoder.parameters()))


def test_the_last_token_alone(tmp_path: Path) -> None:
    decoder, _, _ = load_decoder(write(tmp_path, "qwen3"))
    with torch.no_grad():
        last = decoder(torch.tensor([TOKENS]), torch.tensor([0]))
    close(last, golden("qwen3")[-1:])


def test_a_context_within_the_window_needs_no_mask(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "gemma3"))
    assert [5, None] == [window.size for window in Decoder(config, 64).windows]
    assert [None] == [window.size for window in Decoder(config, 5).windows]
