"""A language model in eager PyTorch, from its checkpoint, to compare with."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .backend import torch
from .llm import Options, load_decoder


class Reference:
    """Scores tokens as `LanguageModel` does; `options` are `ptegpu.export.Options` (quantize, group, embedding, …).

    With the options of the export, its weights are those of the program.
    """

    def __init__(self, folder: str | os.PathLike[str], context: int, **options: Any) -> None:
        chosen = Options(max_context=context, max_seq=context, all_logits=True, **options)
        self._decoder = load_decoder(folder, chosen)[0]

    def score(self, prompt: list[int], first: int = 1) -> np.ndarray:
        """The log-probability of each token, from number `first` on, given those before it."""
        with torch.no_grad():
            self._decoder.reset()
            tokens = torch.tensor([prompt])
            logits = self._decoder(tokens[:, :-1], torch.zeros(1, dtype=torch.int64))[0]  # (S - 1, V)
            found = torch.log_softmax(logits.float(), -1).gather(1, tokens[0, 1:, None])[:, 0]
            return np.asarray(found[first - 1 :].numpy())
