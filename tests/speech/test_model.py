"""A tiny Whisper in ptegpu, compared with transformers token by token."""

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


def features(samples: np.ndarray, **options: Any) -> torch.Tensor:
    return hearing.extractor()(samples, sampling_rate=16000, return_tensors="pt", **options).input_features


def segments(transcript: Transcript) -> list[tuple[float, float, list[int]]]:
    return [(round(s.start, 4), round(s.end, 4), s.tokens) for s in transcript.segments]


def theirs(reference: Any, mel: torch.Tensor, **options: Any) -> list[tuple[float, float, list[int]]]:
    """Return the segments from transformers, without the extra timestamp at the end of a window's last segment."""
    with torch.no_grad():
        their_segments = reference.generate(mel, return_segments=True, **options)["segments"][0]
    result = []
    for s in their_segments:
        tokens = s["tokens"].tolist()
        twice = len(tokens) > 1 and min(tokens[-2:]) > hearing.NO_TIMESTAMPS
        result.append((round(float(s["start"]), 4), round(float(s["end"]), 4), tokens[:-1] if twice else tokens))
    return result


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
    """The logits after each step, for random tokens in steps of 1 to 5."""
    mel, tokens = features(hearing.sound(1, seed=3)), torch.randint(0, hearing.TEXT, (1, 12))
    with torch.no_grad():
        expected = reference(mel, decoder_input_ids=tokens).logits[0].numpy()
    heard = model.program.method("encode").execute([mel.numpy()])
    rows, first = [], 0
    for count in (5, 1, 1, 4, 1):
        rows.append(model._step(tokens[0, first : first + count].tolist(), first, heard))
        first += count
    close(np.stack(rows), expected[[4, 5, 6, 10, 11]])


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
    options: dict[str, Any] = {"language": language, "task": task}
    never = reference.generation_config.suppress_tokens
    if not timestamps:  # a random model would write timestamps anyway
        never = [*never, *range(hearing.NO_TIMESTAMPS, hearing.VOCAB)]
        monkeypatch.setattr(model, "card", replace(model.card, suppressed=tuple(never)))
    expected = theirs(reference, features(samples), return_timestamps=timestamps, suppress_tokens=never, **options)
    transcript = model.transcribe(samples, timestamps=timestamps, no_speech=None, **options)
    assert expected == segments(transcript)
    assert language in (None, transcript.language)
    assert len({t for s in transcript.segments for t in s.tokens}) > 4


def test_long(reference: Any, model: SpeechModel) -> None:
    samples = hearing.sound(4.321, seed=2)
    expected = theirs(reference, features(samples, **LONG), task="transcribe", return_timestamps=True)
    transcript = model.transcribe(samples, no_speech=None)
    assert expected == segments(transcript)
    assert len(expected) > 4
    assert 4.321 == pytest.approx(transcript.duration)
    assert "".join(s.text for s in transcript.segments) == transcript.text
    words = [f"w{t}" for t in transcript.segments[0].tokens if t < hearing.TEXT]
    assert words == transcript.segments[0].text.split()


def test_silence(reference: Any, model: SpeechModel) -> None:
    """A window is skipped where both thresholds say so; they are chosen so that some windows are."""
    samples = hearing.sound(3.5, seed=4)
    plain = model.transcribe(samples, no_speech=None)
    no_speech = sorted({s.no_speech for s in plain.segments})
    middle = no_speech[len(no_speech) // 2 - 1] * 0.5 + no_speech[len(no_speech) // 2] * 0.5
    unlikely = max(s.logprob for s in plain.segments) + 1
    options = {"no_speech_threshold": middle, "logprob_threshold": unlikely, "return_dict_in_generate": True}
    mel = features(samples, **LONG)
    expected = theirs(reference, mel, task="transcribe", return_timestamps=True, temperature=0.0, **options)
    transcript = model.transcribe(samples, no_speech=middle, unlikely=unlikely)
    assert expected == segments(transcript)
    assert 0 < len(transcript.segments) < len(plain.segments)


@pytest.mark.heavy
def test_the_shape_of_whisper_tiny(tmp_path: Path) -> None:
    """Windows of 30 s and as many parameters as the real model, with sound of one window and of two."""
    wide = {"d_model": 384, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_layers": 4, "decoder_layers": 4}
    reference = hearing.model(
        1, 0.3, vocab_size=51865, max_source_positions=1500, max_target_positions=48, **wide, **heads
    )
    exported = export_speech(hearing.save(reference, tmp_path), tmp_path / "whisper.pte")
    assert 37_000_000 < exported.summary.parameters < 38_000_000
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
