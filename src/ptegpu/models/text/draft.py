"""A smaller model that proposes tokens: opened, checked and closed with the model that verifies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import InvalidInput, UnsupportedProgram
from ...runtime import LoadOptions
from ..door import Openable
from .sampling import Sampler, Sampling
from .signature import TextSignature
from .speculation import Lookup, Source

if TYPE_CHECKING:
    from .paged import PagedRunner
    from .prompts import Prompts
    from .sequential import SequentialRunner


class DraftModel:
    """Proposals from a smaller model, which chooses with the same random numbers as the one that verifies.

    It has the cache of one text: where `is_single` is false, it has none to propose.
    """

    drafted = True

    def __init__(
        self, runner: SequentialRunner, prompt: int, sampling: Sampling, is_single: Callable[[], bool] | None
    ) -> None:
        self._runner, self._prompt, self._is_single = (
            runner,
            prompt,
            is_single,
        )  # `prompt` tokens come before the first step
        self._sampler = Sampler(replace(sampling, repeat_penalty=1.0), runner.signature.vocabulary)
        self._same = 0  # tokens of the text in the latest call

    def available(self, text: Sequence[int], most: int) -> int:
        if self._is_single is not None and not self._is_single():
            return 0
        return min(most, self._runner.signature.context - len(text))

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        same, self._same = self._same, len(text) - 1
        return self._runner.continuation(text, count, self._sampler, len(text) - self._prompt, same)


def sources(
    signature: TextSignature,
    tokens: Sequence[int],
    sampling: Sampling,
    draft: SequentialRunner | None,
    is_single: Callable[[], bool] | None = None,
) -> list[Source]:
    """Return what proposes tokens after a prompt: the text itself, and a draft model if it can read the prompt."""
    sources: list[Source] = [Lookup(signature.vocabulary)]
    if draft is not None and max(tokens) < signature.vocabulary:
        sources.append(DraftModel(draft, len(tokens), sampling, is_single))
    return sources


def open_draft(model: Prompts, runner: SequentialRunner | PagedRunner, source: Openable, options: LoadOptions) -> None:
    """Let a smaller model propose tokens for a runner, which closes it. Refuse one of another vocabulary."""
    from .model import LanguageModel

    draft = LanguageModel(source, replace(options, device=runner.program.device))
    runner.draft = draft.runner
    own, other = model.signature.vocabulary, draft.signature.vocabulary
    if own != other:
        raise InvalidInput(
            f"the draft model has a vocabulary of {other} tokens, the model one of {own}: "
            "take a draft of the same family"
        )
    if not draft.runner.method.in_one_plan:
        raise UnsupportedProgram("the draft model runs partly on the host, so it cannot propose tokens fast enough")
    if model.has_tokenizer and draft.has_tokenizer and model.tokenizer.vocabulary != draft.tokenizer.vocabulary:
        raise InvalidInput(
            f"the tokens of {draft.tokenizer.path} differ from those of {model.tokenizer.path}: "
            "take a draft of the same family"
        )
