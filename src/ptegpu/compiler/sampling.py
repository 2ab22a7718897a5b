"""A sampler behind the logits of a decoder: the next token is chosen on the GPU, in the same plan as the model."""

from __future__ import annotations

from ..dtypes import DType
from ..ops.sample import SAMPLE, SCORE
from ..ops.views import VIEW
from ..plan.method import Var
from ..sampling import SETTINGS, words_of
from .append import Append, Tail


def sampling(vocabulary: int, rows: int) -> Append:
    """Return what makes the last logits a token, and the logits of `rows` given tokens their log-probabilities."""

    def append(tail: Tail) -> None:
        logits = tail.outputs[-1]
        assert isinstance(logits, Var)
        settings = tail.input("settings", DType.I32, (len(SETTINGS),))
        seen = tail.input("seen", DType.I32, (words_of(vocabulary),), dynamic=True)
        how = tail.input("how")
        sampled = [(DType.I32, (1,)), (DType.F32, (1,))]
        token, logprob = tail.call(SAMPLE, logits, settings, seen, how, gives=sampled)
        targets = tail.input("targets", DType.I32, (1, rows), dynamic=True)
        (scores,) = tail.call(SCORE, logits, targets, gives=[(DType.F32, (1, rows))])
        (following,) = tail.call(VIEW, token, (1, 1), gives=[(DType.I32, (1, 1))])
        tail.outputs = [following, logprob, scores]

    return append
