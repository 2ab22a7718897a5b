"""A language model in eager PyTorch, from its checkpoint, as a reference."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .backend import torch
from .llm import LlmOptions, load_decoder


class Reference:
    """A scorer of tokens with the interface of `LanguageModel`; `options` are those of `ptegpu.export.Options`.

    With the options of an export, its weights are those of the program.
    """

    def __init__(self, folder: str | os.PathLike[str], context: int, **options: Any) -> None:
        self._decoder = load_decoder(
            folder, LlmOptions(max_context=context, max_seq=context, all_logits=True, **options)
        )[0]

    def score(self, prompt: list[int], first: int = 1) -> np.ndarray:
        """Return the log-probability of each token from index `first` on, given the tokens before it."""
        with torch.no_grad():
            self._decoder.reset()
            tokens = torch.tensor([prompt])
            logits = self._decoder(tokens[:, :-1], torch.zeros(1, dtype=torch.int64))[0]  # (S - 1, V)
            scores = torch.log_softmax(logits.float(), -1).gather(1, tokens[0, 1:, None])[:, 0]
            return np.asarray(scores[first - 1 :].numpy())
