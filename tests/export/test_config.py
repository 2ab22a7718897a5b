"""`config.json`: the defaults of families, and messages about invalid values."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.zoo.checkpoints import LLAMA3, config

from ptegpu.errors import ExportError
from ptegpu.export.config import DecoderConfig, Rope, read_config
from ptegpu.export.families import FAMILIES
from ptegpu.models.kinds import SEEING_TYPES


def read(folder: Path, name: str, changes: dict[str, Any], generation: dict[str, Any] | None = None) -> DecoderConfig:
    values = {k: v for k, v in (config(name) | changes).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def test_values_where_the_file_is_silent(tmp_path: Path) -> None:
    silent = dict.fromkeys(("num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "rope_theta"), ...)
    actual = read(tmp_path, "qwen3", silent | {"head_dim": ...})
    assert (4, 16, 1e-6, 2048) == (actual.kv_heads, actual.head_dim, actual.eps, actual.context)
    assert actual.layers[0].rope == Rope(16, 1e4)
    assert (True, True, "gelu_pytorch_tanh") == _gemma(read(tmp_path, "gemma", {"hidden_act": ...}))


def _gemma(actual: DecoderConfig) -> tuple[bool, bool, str]:
    return actual.tied, actual.embedding_scale == actual.dim**0.5, actual.activation


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("gemma3", {"num_hidden_layers": 7, "sliding_window_pattern": ...}, [5, 5, 5, 5, 5, None, 5]),
        ("gemma2", {"num_hidden_layers": 3}, [5, None, 5]),
        ("qwen2-window", {"use_sliding_window": False}, [None, None]),
        ("mistral", {"sliding_window": None}, [None, None]),
        ("gemma3", {"layer_types": ["full_attention", "sliding_attention"]}, [None, 5]),
    ],
)
def test_windows(name: str, changes: dict[str, Any], windows: list[int | None], tmp_path: Path) -> None:
    assert windows == [layer.window for layer in read(tmp_path, name, changes).layers]


def test_rope_of_older_and_newer_files(tmp_path: Path) -> None:
    older = {"rope_theta": 5e5, "rope_scaling": LLAMA3}
    newer = {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": LLAMA3 | {"rope_theta": 5e5}}
    expected = Rope(16, 5e5, "llama3", 8.0, 1.0, 4.0, 16)
    assert expected == read(tmp_path, "llama", older).layers[0].rope == read(tmp_path, "llama", newer).layers[0].rope
    each = {"sliding_attention": {"rope_theta": 10.0}, "full_attention": {"rope_type": "linear", "factor": 2.0}}
    actual = read(tmp_path, "gemma3", {"rope_parameters": each, "rope_scaling": ..., "rope_theta": ...}).layers
    assert [Rope(24, 10.0), Rope(24, 1e6, "linear", 2.0)] == [layer.rope for layer in actual]


def test_long_waves_are_stretched() -> None:
    plain, scaled = (r.frequencies(512) for r in (Rope(64, 1e4), Rope(64, 1e4, "llama3", 8.0, 1.0, 4.0, 256)))
    waves = 2 * torch.pi / plain
    torch.testing.assert_close(scaled[waves < 64], plain[waves < 64])
    torch.testing.assert_close(scaled[waves > 256], plain[waves > 256] / 8)
    assert ((plain / 8 <= scaled) & (scaled <= plain)).all()


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, (1, (2,))),
        ({"bos_token_id": 3, "eos_token_id": [4, 5, 4]}, (3, (4, 5))),
        ({"eos_token_id": None, "bos_token_id": None}, (-1, ())),
    ],
)
def test_special_tokens(generation: dict[str, Any] | None, expected: tuple[int, tuple[int]], tmp_path: Path) -> None:
    actual = read(tmp_path, "llama", {}, generation)
    assert expected == (actual.bos, actual.eos)


NAMES = ", ".join((*FAMILIES, *SEEING_TYPES))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bloom"}, f"model_type 'bloom' is not supported; supported are {NAMES}"),
        (
            {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
            f"model_type 'vit' is not supported; supported are {NAMES}. "
            "`ptegpu export hf` exports models that do not generate text",
        ),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"vocab_size": 0}, "invalid vocab_size 0: expected an integer from 1 to 2,147,483,647"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        (
            {"hidden_act": "relu"},
            "hidden_act 'relu' is not supported; supported are silu, gelu, gelu_pytorch_tanh, gelu_new",
        ),
        (
            {"rope_scaling": {"type": "mrope"}},
            "rope_type 'mrope' is not supported; supported are default, linear, dynamic, yarn, longrope, llama3",
        ),
        (
            {"num_hidden_layers": 10**9},
            "invalid num_hidden_layers 1000000000: expected an integer from 1 to 4,096",
        ),
        ({"hidden_size": 1e400}, "invalid hidden_size inf: expected an integer from 1 to 2,147,483,647"),
        ({"hidden_size": True}, "invalid hidden_size True: expected an integer from 1 to 2,147,483,647"),
        ({"intermediate_size": -5}, "invalid intermediate_size -5: expected an integer from 1 to 2,147,483,647"),
        ({"rms_norm_eps": math.nan}, "invalid rms_norm_eps nan: expected a positive number"),
        ({"rms_norm_eps": "x"}, "invalid rms_norm_eps 'x': expected a positive number"),
        ({"rope_theta": [1]}, "invalid rope_theta [1]: expected a positive number"),
        ({"partial_rotary_factor": 0.5}, "a partial_rotary_factor is not supported for llama"),
        ({"model_type": "gpt_neox", "hidden_size": 3}, "3 elements are too few for 4 heads"),
        ({"model_type": "falcon", "alibi": True}, "alibi is not supported for falcon"),
        ({"model_type": "stablelm", "partial_rotary_factor": 0.1}, "1 elements of a head cannot be rotated in pairs"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0]}},
            "long_factor has 1 numbers; expected 8",
        ),
        (
            {"rope_scaling": {"type": "yarn"}, "original_max_position_embeddings": -1},
            "invalid original_max_position_embeddings -1: expected a positive number",
        ),
        (
            {"rope_scaling": {"type": "yarn"}, "rope_theta": 1},
            "rope_type 'yarn' needs a factor and a rope_theta above 1, and more than 2 elements",
        ),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        (
            {"layer_types": ["sliding_attention"] * 2},
            "invalid sliding_window None: expected an integer, because layers use it",
        ),
        (
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is not supported: text is generated from left to right",
        ),
        (
            {"quantization_config": {"bits": 4}},
            "the weights are quantized already; export the original checkpoint",
        ),
    ],
)
def test_errors(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(f'{tmp_path}/config.json: {message}')}$"):
        read(tmp_path, "llama", changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": 5},
        {"layer_types": [[1], [2]]},
        {"rope_parameters": [1]},
        {"rope_scaling": 7},
        {"model_type": "gemma3_text", "sliding_window": 4, "sliding_window_pattern": 0},
    ],
)
def test_values_of_another_kind(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=re.escape(f"{tmp_path}/config.json cannot be understood: ")):
        read(tmp_path, "llama", changes)


def test_a_deep_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ExportError, match=r"config\.json is not JSON: it is nested too deeply$"):
        read_config(tmp_path)


def test_no_config(tmp_path: Path) -> None:
    expected = f"{tmp_path} has no config.json: give the folder of a Hugging Face checkpoint"
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"), [("[]", "does not hold a JSON object"), ("{", "is not JSON: Expecting property")]
)
def test_broken_config(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ExportError, match=re.escape(f"{tmp_path}/config.json {message}")):
        read_config(tmp_path)
