"""The model card of the bundled tale-teller says what the model does; a part of its figures is measured again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tools.tales_card import BEGIN, CARD, END, PREFIX, greedy, measure, quote

from ptegpu.models.text import LanguageModel


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with LanguageModel(CARD.with_name("tales.pte")) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def card() -> str:
    return CARD.read_text("utf-8")


@pytest.mark.slow
def test_the_held_out_figures(model: LanguageModel, card: str) -> None:
    (row,) = re.findall(rf"their first {PREFIX} tokens \| (.+) \|$", card, re.MULTILINE)
    tokens, *stated = (float(cell) for cell in row.split(" | "))
    evaluation = measure(model, PREFIX)
    assert evaluation.tokens == tokens == PREFIX
    assert [evaluation.nats, evaluation.perplexity, evaluation.bits_per_byte] == pytest.approx(stated, rel=1e-3)


def test_the_greedy_sample(model: LanguageModel, card: str) -> None:
    assert quote(greedy(model)) in card.partition(BEGIN)[2].partition(END)[0]


def test_the_sizes(model: LanguageModel, card: str) -> None:
    signature = model.signature
    assert f"vocabulary of {signature.vocabulary:,}" in card
    assert f"context of {signature.context} tokens" in card
    assert f"{(CARD.with_name('tales.pte')).stat().st_size / 1e6:.2f} MB" in card
