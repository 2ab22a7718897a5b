"""Whisper's rules compared with those of transformers, over random logits and histories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptegpu.models.parts import Speech
from ptegpu.models.speech.rules import Rules, TimedTokens, cut
from ptegpu.models.speech.transcript import Segment, srt, vtt

FACTS = Speech(
    rate=16000, hop=160, window=400, frames=100, mels=80, context=40, vocab=60, start=31, end=30, no_timestamps=35,
    initial=9, no_speech=34, languages={"en": 32}, tasks={"transcribe": 33}, suppressed=(2, 31, 32, 33, 34),
    suppressed_first=(4, 30),
)  # fmt: skip
ZERO = 36


@pytest.mark.parametrize("timestamps", [False, True])
def test_scores(timestamps: bool) -> None:
    torch = pytest.importorskip("torch")
    from transformers import GenerationConfig
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        SuppressTokensLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    config = GenerationConfig(eos_token_id=30, no_timestamps_token_id=35, max_initial_timestamp_index=9)
    theirs = [
        SuppressTokensAtBeginLogitsProcessor([4, 30], begin_index=3),
        SuppressTokensLogitsProcessor([2, 31, 32, 33, 34]),
        *([WhisperTimeStampLogitsProcessor(config, begin_index=3)] if timestamps else []),
    ]
    random, rules = np.random.default_rng(0), Rules(FACTS, timestamps)
    for length in [0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7] * 12:
        times = np.sort(random.integers(ZERO, 58, length))
        tokens = np.where(random.random(length) < 0.5, times, random.integers(0, 30, length)).tolist()
        logits = (random.standard_normal(60) * random.choice([0.5, 4])).astype(np.float32)
        expected = torch.tensor(logits)[None]
        for process in theirs:
            expected = process(torch.tensor([[31, 32, 33, *tokens]]), expected)
        assert np.array_equal(expected[0].numpy(), rules.scores(logits, tokens))


def test_cut() -> None:
    a, b, c = ZERO + 3, ZERO + 20, ZERO + 31
    assert ([TimedTokens(0, 50, [1, 2])], 100) == cut([1, 2], 100, FACTS)
    assert ([TimedTokens(0, 20, [a, 1, b])], 100) == cut([a, 1, b], 100, FACTS)
    assert ([TimedTokens(0, 40, [ZERO, 1])], 80) == cut([ZERO, 1], 80, FACTS)
    assert ([TimedTokens(3, 20, [a, 1, b])], 40) == cut([a, 1, b, b], 100, FACTS)
    assert ([TimedTokens(3, 20, [a, 1, b])], 40) == cut([a, 1, b, b, 2, 3], 100, FACTS)
    assert ([TimedTokens(3, 20, [a, 1, b]), TimedTokens(20, 31, [b, 2, c])], 100) == cut([a, 1, b, b, 2, c], 100, FACTS)


def test_sizes_and_tokens() -> None:
    FACTS.check()
    assert (1.0, 0.02, ZERO) == (FACTS.seconds, FACTS.precision, FACTS.first_timestamp)
    for wrong in (
        {"end": 60},
        {"hop": 0},
        {"frames": 101},
        {"languages": {"en": -1}},
        {"suppressed": (60,)},
        {"rate": 1.5},
    ):
        with pytest.raises(ValueError, match=r"is|fit"):
            replace(FACTS, **wrong).check()


def test_subtitles() -> None:
    segments = [Segment(0.0, 1.5, " One\n\ntwo --> 3", [], 0.0, 0.0), Segment(3661.25, 3662.0, " a < b", [], 0.0, 0.0)]
    assert "1\n00:00:00,000 --> 00:00:01,500\nOne two -> 3\n\n2\n01:01:01,250 --> 01:01:02,000\na < b\n\n" == srt(
        segments
    )
    assert (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne two -&gt; 3\n\n01:01:01.250 --> 01:01:02.000\na &lt; b\n\n"
        == vtt(segments)
    )
