"""Weights from files: ways to store them, and what is said about files that do not fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.export.checkpoints import tensors, write

from ptegpu.errors import ExportError
from ptegpu.export import Options, load_decoder
from ptegpu.export.layers import ByteLinear, GroupedEmbedding, GroupedLinear


def replaced(folder: Path, changes: dict[str, torch.Tensor | None]) -> Path:
    """A Qwen3 with other tensors; None: without."""
    made = tensors("qwen3") | changes
    write(folder, "qwen3")
    save_file({k: v for k, v in made.items() if v is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = tensors("qwen3")["lm_head.weight"].to(dtype)
    decoder, _, _ = load_decoder(replaced(tmp_path, {"lm_head.weight": weight}))
    assert torch.equal(weight.float(), decoder.lm_head.weight)


def test_what_is_computed_anyway_is_ignored(tmp_path: Path) -> None:
    load_decoder(replaced(tmp_path, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(16)}))


@pytest.mark.parametrize("quantize", ["4bit", "8da4w"])
def test_tied_and_in_4_bits(quantize: str, tmp_path: Path) -> None:
    decoder, weights, _ = load_decoder(write(tmp_path, "llama"), Options(quantize=quantize))
    assert isinstance(decoder.embed_tokens, GroupedEmbedding)
    assert decoder.embed_tokens.weight is decoder.lm_head.weight
    assert quantize == "8da4w" or not decoder.lm_head.dynamic
    assert ({"4 bits in groups of 32": 15}, []) == (weights.stored, weights.notes)


def test_tied_in_two_ways(tmp_path: Path) -> None:
    decoder, weights, _ = load_decoder(write(tmp_path, "llama"), Options(quantize="8bit"))
    assert isinstance(decoder.lm_head, ByteLinear)
    assert {"float": 1, "8 bits per row": 15} == weights.stored
    assert ["embedding and output layer are one matrix in the checkpoint, stored in two ways here"] == weights.notes


def test_tied_floats_are_one_tensor(tmp_path: Path) -> None:
    decoder, _, _ = load_decoder(write(tmp_path, "llama"))
    assert decoder.lm_head.weight is decoder.embed_tokens.weight


def test_columns_that_fill_no_group_stay_in_floats(tmp_path: Path) -> None:
    decoder, weights, _ = load_decoder(write(tmp_path, "llama"), Options(quantize="4bit", group=128))
    assert isinstance(decoder.layers[0].mlp.down_proj, GroupedLinear)
    assert {"float": 13, "4 bits in groups of 128": 2} == weights.stored
    assert "embed_tokens stays in floats: its 64 columns are no multiple of 128" == weights.notes[0]


DTYPES = "supported are float32, float16, bfloat16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.norm.weight": None, "lm_head.weight": None, "extra": torch.zeros(1)},
            ": the weights are not those of config.json: missing are lm_head.weight, norm.weight; unexpected are extra",
        ),
        (
            dict.fromkeys([k for k in tensors("qwen3") if "layers.1" in k]),
            ": the weights are not those of config.json: missing are layers.1.input_layernorm.weight, "
            "layers.1.mlp.down_proj.weight, layers.1.mlp.gate_proj.weight, layers.1.mlp.up_proj.weight, "
            "layers.1.post_attention_layernorm.weight and 6 more",
        ),
        (
            {"model.norm.weight": torch.zeros(64, dtype=torch.int32)},
            f"/model.safetensors: model.norm.weight is int32; {DTYPES}",
        ),
        (
            {"model.norm.weight": torch.zeros(60)},
            "/model.safetensors: model.norm.weight has the shape [60]; config.json asks for [64]",
        ),
    ],
)
def test_errors(changes: dict[str, torch.Tensor | None], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(f'{tmp_path}{message}')}$"):
        load_decoder(replaced(tmp_path, changes))


def test_missing_files(tmp_path: Path) -> None:
    write(tmp_path, "qwen3", shards=2)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(ExportError, match=f"^{re.escape(f'{tmp_path}/model-1.safetensors is missing')}$"):
        load_decoder(tmp_path)
    for path in tmp_path.glob("model*"):
        path.unlink()
    with pytest.raises(ExportError, match=f"^{re.escape(f'{tmp_path}: there are no *.safetensors files')}$"):
        load_decoder(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ExportError, match=r"; pytorch_model\.bin is of an older kind, convert it first$"):
        load_decoder(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    write(tmp_path, "qwen3")
    (tmp_path / "model.safetensors").write_bytes(b"no tensors in here")
    with pytest.raises(ExportError, match=re.escape(f"{tmp_path}/model.safetensors: not a safetensors file: ")):
        load_decoder(tmp_path)
