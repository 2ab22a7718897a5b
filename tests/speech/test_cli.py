"""`ptegpu transcribe` and `ptegpu export speech`: their output, errors and exit codes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Invoke, invoke  # noqa: F401 (a fixture)
from tests.tasks.test_wave import wav
from tests.zoo import hearing

import ptegpu.export
from ptegpu.models.speech import SpeechModel, srt, transcribe, vtt


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return wav(tmp_path / "sound.wav", 3, 32, hearing.sound(2.3, seed=2)[:, None])


def test_text(invoke: Invoke, exported: Any, model: SpeechModel, sound: Path) -> None:  # noqa: F811
    command = ("transcribe", sound, "--model", exported.files[0], "--no-speech", 2)
    expected = model.transcribe(sound, no_speech=None)
    ended = invoke(*command)
    assert (0, expected.text + "\n") == (ended.code, ended.out)
    assert re.fullmatch(rf"2\.3 s of sound in [\d.]+ m?s · language {expected.language}\n", ended.err)
    assert srt(expected.segments) == invoke(*command, "--srt", "--no-stats").out
    assert vtt(expected.segments) == invoke(*command, "--vtt", "--no-stats").out
    first, *_ = invoke(*command, "--timestamps", "--no-stats").out.splitlines()
    assert re.fullmatch(r"\[00:00:0\d\.\d{3} → 00:00:0\d\.\d{3}\] .*", first)
    result = invoke(*command, "--language", "de", "--task", "translate", "--json").json()
    expected = model.transcribe(sound, language="de", task="translate", no_speech=None)
    assert ("de", 2.3, expected.text) == (result["language"], result["duration"], result["text"])
    assert [s.tokens for s in expected.segments] == [s["tokens"] for s in result["segments"]]


def test_errors_are_one_line(invoke: Invoke, exported: Any, sound: Path, tmp_path: Path, mlp: Path) -> None:  # noqa: F811
    other = tmp_path / "sound.mp3"
    other.write_bytes(b"ID3" + bytes(40))
    model = ("--model", exported.files[0])
    for command, code, text in (
        (
            ("transcribe", other, *model),
            1,
            "file of plain samples: it does not begin with RIFF and WAVE; try ffmpeg",
        ),
        (("transcribe", tmp_path / "no.wav", *model), 1, "No such file or directory"),
        (("transcribe", sound, *model, "--language", "xx"), 1, "unknown language 'xx': expected one of de, en"),
        (("transcribe", sound, *model, "--srt", "--json"), 2, "give one of --srt, --vtt and --json"),
        (
            ("transcribe", sound, "--model", mlp),
            1,
            "does not say what it is for, not a program for speech",
        ),
        (("transcribe", sound, "--model", tmp_path), 1, "has no config.json: give a program (.pte) or the folder"),
        (("transcribe", sound), 2, "Missing option '--model'"),
    ):
        ended = invoke(*command)
        assert (code, "") == (ended.code, ended.out)
        assert text in ended.err and 1 == len(ended.err.splitlines())


@pytest.fixture
def mlp() -> Path:
    return Path(__file__).resolve().parent.parent / "data" / "mlp.pte"


def test_a_folder_is_a_model(
    folder: Path, exported: Any, model: SpeechModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(source: Path, target: Path, **_: Any) -> None:
        for file in exported.files:
            shutil.copy(file, target.parent / Path(file).name.replace("whisper", target.stem, 1))

    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ptegpu.export, "export_speech", export)
    samples = hearing.sound(0.6)
    assert model.transcribe(samples) == transcribe(samples, folder)


def test_export(invoke: Invoke, folder: Path, tmp_path: Path) -> None:  # noqa: F811
    for changes, text in (
        ({"model_type": "llama"}, "model_type 'llama' is not whisper"),
        ({"d_model": 65}, "d_model 65 does not divide into heads"),
        ({"decoder_layers": 3}, "the weights are not those of config.json: missing are decoder.layers.2."),
        ({"max_target_positions": -1}, "invalid max_target_positions -1: expected an integer"),
        ({"vocab_size": 60}, "config.json cannot be understood: a token is 61"),
    ):
        source = tmp_path / "source"
        shutil.copytree(folder, source, dirs_exist_ok=True)
        config = source / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
        ended = invoke("export", "speech", source, "-o", tmp_path / "m.pte")
        assert 1 == ended.code and text in ended.err and not (tmp_path / "m.pte").exists()
