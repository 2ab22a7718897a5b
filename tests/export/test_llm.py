"""Checkpoints to `.pte` and through ptegpu, against transformers, and against the eager decoder, which equals it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import close
from tests.zoo.checkpoints import TOKENS, by_transformers, write

import ptegpu
from ptegpu.errors import ExportError, NoAdapter
from ptegpu.export import Exported, LlmOptions, Lowered, ModelSummary, export_llm, load_decoder
from ptegpu.export.decoder import Decoder
from ptegpu.format import read_program

CHUNKS = [5, 1, 1, 4, 1]
ENDS = np.cumsum(CHUNKS) - 1  # the last token of each chunk
ONE_LAYER = {"num_hidden_layers": 1}


def on_gpu(path: Path) -> np.ndarray:
    """The logits of the last token of every chunk, (chunks, V)."""
    actual, first = [], 0
    with ptegpu.load(path, methods=["forward"]) as program:
        for count in CHUNKS:
            logits = program(np.array([TOKENS[first : first + count]]), np.array([first]))
            actual.append(logits.reshape(-1, logits.shape[-1])[-1])
            first += count
    return np.stack(actual)


def eager(decoder: Decoder) -> np.ndarray:
    actual, first = [], 0
    with torch.no_grad():
        for count in CHUNKS:
            actual.append(decoder(torch.tensor([TOKENS[first : first + count]]), torch.tensor([first]))[0].numpy())
            first += count
    return np.stack(actual)


def exported(
    folder: Path, name: str, options: LlmOptions, changes: dict[str, Any] | None = None
) -> Exported[ModelSummary]:
    return export_llm(write(folder, name, changes), folder / "model.pte", options, check=False)


def test_as_transformers(tmp_path: Path) -> None:
    account = exported(tmp_path, "gemma3", LlmOptions(all_logits=True))
    close(on_gpu(tmp_path / "model.pte"), by_transformers(tmp_path)[ENDS])
    assert (1, ()) == (account.lowered.partitions, account.lowered.outside)
    operators = {"aten.gelu.default": 2, "sdpa_with_kv_cache.default": 2, "et_vk.rms_norm.default": 13}
    assert operators == {op: account.lowered.delegated[op] for op in operators}


@pytest.mark.parametrize(
    ("name", "options", "operators"),
    [
        ("gemma2", LlmOptions(max_seq=8), {"update_cache.default": 2, "aten.bmm.default": 4}),
        (
            "qwen2",
            LlmOptions(quantize="8da4w"),
            {"et_vk.linear_dq8ca_q4gsw.default": 8, "torchao.choose_qparams_affine.default": 5},
        ),
    ],
)
def test_as_eager(name: str, options: LlmOptions, operators: dict[str, int], tmp_path: Path) -> None:
    account = exported(tmp_path, name, options, ONE_LAYER)
    expected = eager(load_decoder(tmp_path, options)[0])
    close(on_gpu(tmp_path / "model.pte"), expected)
    assert (1, ()) == (account.lowered.partitions, account.lowered.outside)
    assert operators == {op: account.lowered.delegated[op] for op in operators}
    assert ((1, account.summary.options.max_seq), (1,)) == account.lowered.bounds


def test_everything_a_runner_must_know(tmp_path: Path) -> None:
    folder = write(tmp_path / "source", "llama", ONE_LAYER)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": "old"}))
    (folder / "chat_template.jinja").write_text("{{ new }}")
    path = tmp_path / "my.model.pte"
    phases: dict[str, list[tuple[int, int]]] = {}

    def progress(phase: str, done: int, of: int) -> None:
        phases.setdefault(phase, []).append((done, of))

    options = LlmOptions(quantize="4bit", max_seq=16, max_context=32)
    account = export_llm(folder, path, options, progress=progress)
    close(on_gpu(path), eager(load_decoder(folder, options)[0]))
    operators = {"et_vk.linear_q4gsw.default": 8, "et_vk.embedding_q4gsw.default": 1}
    assert operators == {op: account.lowered.delegated[op] for op in operators}
    assert account.check and account.check.difference < 1e-5 * account.check.largest and account.check.same_choice
    names = ["my.model.pte", "my.model.tokenizer.json", "my.model.tokenizer_config.json"]
    assert names == [p.name for p in account.files]
    assert {"bos_token": "<s>", "chat_template": "{{ new }}"} == json.loads(account.files[2].read_text())
    assert [] == account.notes
    assert ["Reading weights", "Tracing", "Lowering", "Checking", "Writing"] == list(phases) == list(account.seconds)
    assert all((1, 1) == actual[-1] for actual in phases.values())
    program = read_program(path)
    packed, scales = 96 * 64 // 2, 96 * 64 // 32 * 4  # of the tied weight, in bytes: one of each, and no sums
    assert [1, 1] == [sorted(map(len, program.named_data.values())).count(n) for n in (packed, scales)]
    assert program.nbytes < 65_000
    constants = {m.name: [m.values[k] for k in m.outputs] for m in program.methods if m.name != "forward"}
    card = json.loads(constants.pop("ptegpu_card")[0])
    assert ("text", 32, 16, [2, 7], True) == (
        card["kind"],
        card["context"],
        card["chunk"],
        card["stop"],
        card["chat_template"],
    )
    assert {
        "get_max_seq_len": [16],
        "get_max_context_len": [32],
        "get_vocab_size": [96],
        "get_n_layers": [1],
        "use_kv_cache": [True],
        "use_sdpa_with_kv_cache": [True],
        "enable_dynamic_shape": [True],
        "get_bos_id": [1],
        "get_eos_ids": [2, 7],
    } == constants


def test_without_tokenizer_and_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise NoAdapter("no adapter here")

    monkeypatch.setattr(ptegpu, "load", none, raising=False)
    monkeypatch.setattr("ptegpu.export.pipeline.lower", lambda *_, **__: Lowered(b"", 0, bounds=((1, 64), (1,))))
    folder = write(tmp_path, "llama")
    account = export_llm(folder, tmp_path / "model.pte")
    assert account.check is None
    assert [
        "not checked: no adapter here",
        f"{folder} has no tokenizer.json: the model takes and returns tokens, not text",
    ] == account.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LlmOptions(dtype="float64"), "invalid dtype 'float64': expected one of float32, float16"),
        (LlmOptions(quantize="3bit"), "invalid quantize '3bit': expected one of none, 4bit, 8da4w, 8bit"),
        (LlmOptions(group=48), "invalid group 48: expected one of 32, 64, 128"),
        (LlmOptions(embedding="2bit"), "invalid embedding '2bit': expected one of float, 4bit"),
        (LlmOptions(max_context=65), "invalid max_context 65: the model was made for 64 positions"),
        (LlmOptions(max_seq=33, max_context=32), "invalid max_seq 33: expected a number from 2 to max_context, 32"),
        (LlmOptions(max_seq=1), "invalid max_seq 1: expected a number from 2 to max_context, 64"),
    ],
)
def test_options_that_make_no_sense(options: LlmOptions, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export_llm(write(tmp_path, "llama"), tmp_path / "model.pte", options)
