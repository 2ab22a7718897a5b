"""A tiny Whisper through ptegpu, token by token against transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import close
from tests.zoo import hearing

from ptegpu.errors import InvalidInput, UnsupportedProgram
from ptegpu.export import export_speech
from ptegpu.format import read_program
from ptegpu.models.card import read_card
from ptegpu.models.speech import SpeechModel, Transcript
from ptegpu.models.speech.model import check_shapes

LONG = {"truncation": False, "padding": "longest"}


def features(samples: np.ndarray, **how: Any) -> torch.Tensor:
    return hearing.extractor()(samples, sampling_rate=16000, return_tensors="pt", **how).input_features


def segments(found: Transcript) -> list[tuple[float, float, list[int]]]:
    return [(round(s.start, 4), round(s.end, 4), s.tokens) for s in found.segments]


def theirs(reference: Any, given: torch.Tensor, **how: Any) -> list[tuple[float, float, list[int]]]:
    """Of a window's last segment, transformers keep the timestamp behind it, too."""
    with torch.no_grad():
        found = reference.generate(given, return_segments=True, **how)["segments"][0]
    made = []
    for s in found:
        tokens = s["tokens"].tolist()
        twice = len(tokens) > 1 and min(tokens[-2:]) > hearing.NO_TIMESTAMPS
        made.append((round(float(s["start"]), 4), round(float(s["end"]), 4), tokens[:-1] if twice else tokens))
    return made


def test_one_plan_for_each_method(exported: Any, model: SpeechModel) -> None:
    assert exported.check.relative < 1e-5
    assert ["aten.log.default"] == [o.operator for o in exported.lowered.outside]
    assert [1, 1, 1] == [len(model.program.method(m).plans) for m in model.program.methods]
    assert all(model.program.method(m).in_one_plan for m in model.program.methods)


@pytest.mark.parametrize("seconds", [0.4, 1.0, 2.357])
def test_log_mel(model: SpeechModel, seconds: float) -> None:
    samples = hearing.sound(seconds)
    expected = features(samples, **({} if seconds <= 1 else LONG))[0].numpy()
    assert np.abs(model.log_mel(samples) - expected).max() < 1e-4


def test_logits(reference: Any, model: SpeechModel) -> None:
    """Of every step, whatever tokens come."""
    mel, tokens = features(hearing.sound(1, seed=3)), torch.randint(0, hearing.TEXT, (1, 12))
    with torch.no_grad():
        expected = reference(mel, decoder_input_ids=tokens).logits[0].numpy()
    heard = model.program.method("encode").execute([mel.numpy()])
    found, first = [], 0
    for count in (5, 1, 1, 4, 1):
        found.append(model._step(tokens[0, first : first + count].tolist(), first, heard))
        first += count
    close(np.stack(found), expected[[4, 5, 6, 10, 11]])


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("language", [None, "en", "de"])
@pytest.mark.parametrize("timestamps", [False, True])
def test_short(
    reference: Any,
    model: SpeechModel,
    monkeypatch: pytest.MonkeyPatch,
    language: str | None,
    task: str,
    timestamps: bool,
) -> None:
    samples = hearing.sound(0.8, seed=1)
    how: dict[str, Any] = {"language": language, "task": task}
    never = reference.generation_config.suppress_tokens
    if not timestamps:  # a random model would not know that there are none
        never = [*never, *range(hearing.NO_TIMESTAMPS, hearing.VOCAB)]
        monkeypatch.setattr(model, "card", replace(model.card, suppressed=tuple(never)))
    expected = theirs(reference, features(samples), return_timestamps=timestamps, suppress_tokens=never, **how)
    found = model.transcribe(samples, timestamps=timestamps, no_speech=None, **how)
    assert expected == segments(found)
    assert language in (None, found.language)
    assert len({t for s in found.segments for t in s.tokens}) > 4


def test_long(reference: Any, model: SpeechModel) -> None:
    samples = hearing.sound(4.321, seed=2)
    expected = theirs(reference, features(samples, **LONG), task="transcribe", return_timestamps=True)
    found = model.transcribe(samples, no_speech=None)
    assert expected == segments(found)
    assert len(expected) > 4
    assert 4.321 == pytest.approx(found.duration)
    assert "".join(s.text for s in found.segments) == found.text
    words = [f"w{t}" for t in found.segments[0].tokens if t < hearing.TEXT]
    assert words == found.segments[0].text.split()


def test_silence(reference: Any, model: SpeechModel) -> None:
    """Windows are left out where both say so; thresholds lie in the middle of what is found."""
    samples = hearing.sound(3.5, seed=4)
    plain = model.transcribe(samples, no_speech=None)
    no_speech = sorted({s.no_speech for s in plain.segments})
    middle = no_speech[len(no_speech) // 2 - 1] * 0.5 + no_speech[len(no_speech) // 2] * 0.5
    unlikely = max(s.logprob for s in plain.segments) + 1
    how = {"no_speech_threshold": middle, "logprob_threshold": unlikely, "return_dict_in_generate": True}
    given = features(samples, **LONG)
    expected = theirs(reference, given, task="transcribe", return_timestamps=True, temperature=0.0, **how)
    found = model.transcribe(samples, no_speech=middle, unlikely=unlikely)
    assert expected == segments(found)
    assert 0 < len(found.segments) < len(plain.segments)


@pytest.mark.heavy
def test_the_shape_of_whisper_tiny(tmp_path: Path) -> None:
    """As many parameters, and windows of 30 s: short sound, and two windows."""
    wide = {"d_model": 384, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_layers": 4, "decoder_layers": 4}
    reference = hearing.model(
        1, 0.3, vocab_size=51865, max_source_positions=1500, max_target_positions=48, **wide, **heads
    )
    made = export_speech(hearing.save(reference, tmp_path), tmp_path / "whisper.pte")
    assert 37_000_000 < made.summary.parameters < 38_000_000
    with SpeechModel(tmp_path / "whisper.pte") as model:
        for seconds in (4.0, 33.0):
            samples, more = hearing.sound(seconds), {} if seconds < 30 else LONG
            mel = hearing.extractor(30)(samples, sampling_rate=16000, return_tensors="pt", **more).input_features
            assert np.abs(model.log_mel(samples) - mel[0].numpy()).max() < 1e-3
            expected = theirs(reference, mel, task="transcribe", return_timestamps=True)
            assert expected == segments(model.transcribe(samples, timestamps=True, no_speech=None))


def test_what_is_refused(model: SpeechModel) -> None:
    samples = hearing.sound(0.5)
    with pytest.raises(InvalidInput, match="unknown language 'xx': expected one of de, en"):
        model.transcribe(samples, language="xx")
    with pytest.raises(InvalidInput, match="unknown task 'sing': expected one of transcribe, translate"):
        model.transcribe(samples, task="sing")
    with pytest.raises(InvalidInput, match=r"samples are floats in one dimension, not int16 \[3\]"):
        model.transcribe(np.zeros(3, np.int16))
    with pytest.raises(InvalidInput, match="sound of more than 1 seconds needs timestamps"):
        model.transcribe(hearing.sound(2), timestamps=False)


def test_card_and_methods_agree(exported: Any) -> None:
    file = read_program(exported.files[0])
    assert exported.summary.card == read_card(file)
    speech = exported.summary.card.speech
    with pytest.raises(UnsupportedProgram, match=r"log_mel takes \[\(1, 16320\)\] and not \[\(1, 16640\)\]"):
        check_shapes(file, replace(speech, frames=speech.frames + 2))
