"""Conversations: reusing the cache between turns gives the same answers as starting afresh."""

from __future__ import annotations

import pytest
from tests.zoo.language import CONTEXT

from ptegpu.errors import InvalidInput
from ptegpu.models.text import LanguageModel

OPTIONS = {"max_tokens": 8, "stop_tokens": ()}
TURNS = ("Hi fox", "And the wood?", "Good")


def test_turns_with_the_cache_equal_turns_from_scratch(model: LanguageModel) -> None:
    conversation = model.chat("Be brief.", **OPTIONS)  # type: ignore[arg-type]
    answers = [conversation.say(text) for text in TURNS]
    assert all(a.timings.reused_tokens for a in answers[1:])
    assert all(a.timings.reused_tokens + a.timings.prefill_tokens == len(a.prompt_tokens) for a in answers)
    assert [m["role"] for m in conversation.messages] == ["system", *("user", "assistant") * 3]
    fresh = model.chat("Be brief.", **OPTIONS)  # type: ignore[arg-type]
    for text, answer in zip(TURNS, answers):
        model.reset()
        again = fresh.say(text)
        assert (0, answer.tokens) == (again.timings.reused_tokens, again.tokens)
    assert conversation.messages == fresh.messages


def test_pieces_of_an_answer_are_its_text(model: LanguageModel) -> None:
    pieces: list[str] = []
    conversation = model.chat(**OPTIONS)  # type: ignore[arg-type]
    answer = conversation.say(TURNS[0], stream=pieces.append, temperature=1.0, seed=3)
    assert "".join(pieces) == answer.text == conversation.messages[-1]["content"]


def test_a_cancelled_answer_counts_as_far_as_it_came(model: LanguageModel) -> None:
    conversation = model.chat(**OPTIONS)  # type: ignore[arg-type]
    stream = conversation.stream(TURNS[0])
    next(stream)
    stream.cancel()
    assert [] == list(stream)
    assert "cancelled" == stream.generation.finish_reason
    assert stream.generation.text == conversation.messages[-1]["content"]
    conversation.say(TURNS[1])
    assert 4 == len(conversation.messages)


def test_a_turn_that_does_not_fit_changes_nothing(model: LanguageModel) -> None:
    conversation = model.chat(**OPTIONS)  # type: ignore[arg-type]
    conversation.say(TURNS[0])
    before = list(conversation.messages)
    with pytest.raises(InvalidInput) as error:
        conversation.say("x " * CONTEXT)
    assert str(error.value).endswith(f"tokens, the model's context holds {CONTEXT}")
    assert before == conversation.messages
    conversation.reset()
    assert [] == conversation.messages
