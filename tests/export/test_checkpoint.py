"""Weights from files: formats to store them in, and messages about files that do not fit."""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.zoo import families
from tests.zoo.checkpoints import config, tensors, write

from ptegpu.errors import ExportError
from ptegpu.export import LlmOptions, export_llm, load_decoder
from ptegpu.export.checkpoint import TensorStore, WeightSource, _rows
from ptegpu.export.config import LayerConfig, read_config
from ptegpu.export.decoder import RotaryTable
from ptegpu.export.families import FAMILIES
from ptegpu.export.layers import ByteLinear, GroupedEmbedding, GroupedLinear


def replaced(folder: Path, changes: dict[str, torch.Tensor | None]) -> Path:
    """A Qwen3 with other tensors; None: without."""
    state = tensors("qwen3") | changes
    write(folder, "qwen3")
    save_file({k: v for k, v in state.items() if v is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = tensors("qwen3")["lm_head.weight"].to(dtype)
    decoder, _, _ = load_decoder(replaced(tmp_path, {"lm_head.weight": weight}))
    assert torch.equal(weight.float(), decoder.lm_head.weight)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("fused", [False, True])
def test_interleaved_rows_become_halves_where_they_are_turned(
    share: float, fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turned in halves, what was loaded gives the scores that the checkpoint gives, turned by neighbours."""
    (tmp_path / "config.json").write_text(json.dumps(families.config("cohere")))
    full = read_config(tmp_path)
    rope = replace(full.layers[0].rope, dim=int(full.head_dim * share))  # type: ignore[type-var]
    config = replace(full, layers=(LayerConfig(rope),))
    if fused:
        names = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.qkv")
        monkeypatch.setitem(FAMILIES, "cohere", replace(FAMILIES["cohere"], names=names))
    heads, shared, dim = config.heads, config.kv_heads, config.head_dim
    x = {"q": torch.randn(5, heads * dim), "k": torch.randn(5, shared * dim)}
    stored = {"q": x["q"], "k": x["k"]} if not fused else dict.fromkeys("qk", torch.cat((x["q"], x["k"], x["k"]), 1))
    table = RotaryTable(rope, 5)
    actual, expected = {}, {}
    for each, count in (("q", heads), ("k", shared)):
        total, rows = _rows(config, f"self_attn.{each}_proj")
        assert rows is not None and total == stored[each].shape[1]
        actual[each] = stored[each][:, rows()].view(1, 5, count, dim)
        pairs = x[each].view(5, count, dim)[..., : rope.dim].unflatten(-1, (-1, 2))
        first, second = pairs.unbind(-1)
        cos, sin = (t[:, None, : rope.dim // 2] for t in (table.cos, table.sin))
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
        expected[each] = torch.cat((turned, x[each].view(5, count, dim)[..., rope.dim :]), -1)
    q, k = (y[0] for y in table(actual["q"], actual["k"], 0))
    for h in range(heads):
        s = h * shared // heads
        torch.testing.assert_close(expected["q"][:, h] @ expected["k"][:, s].T, q[:, h] @ k[:, s].T)


def test_what_is_computed_anyway_is_ignored(tmp_path: Path) -> None:
    load_decoder(replaced(tmp_path, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(16)}))


@pytest.mark.parametrize("quantize", ["4bit", "8da4w"])
def test_tied_and_in_4_bits(quantize: str, tmp_path: Path) -> None:
    decoder, weights, _ = load_decoder(write(tmp_path, "llama"), LlmOptions(quantize=quantize))
    assert isinstance(decoder.embed_tokens, GroupedEmbedding)
    assert decoder.embed_tokens.weight is decoder.lm_head.weight
    assert quantize == "8da4w" or not decoder.lm_head.dynamic
    assert ({"4 bits in groups of 32": 15}, []) == (weights.stored, weights.notes)


def test_tied_in_two_ways(tmp_path: Path) -> None:
    decoder, weights, _ = load_decoder(write(tmp_path, "llama"), LlmOptions(quantize="8bit"))
    assert isinstance(decoder.lm_head, ByteLinear)
    assert {"float": 1, "8 bits per row": 15} == weights.stored
    assert ["embedding and output layer are one matrix in the checkpoint, stored in two formats here"] == weights.notes


def test_tied_floats_are_one_tensor(tmp_path: Path) -> None:
    decoder, _, _ = load_decoder(write(tmp_path, "llama"))
    assert decoder.lm_head.weight is decoder.embed_tokens.weight


def test_columns_that_fill_no_group_stay_in_floats(tmp_path: Path) -> None:
    decoder, weights, _ = load_decoder(write(tmp_path, "llama"), LlmOptions(quantize="4bit", group=128))
    assert isinstance(decoder.layers[0].mlp.down_proj, GroupedLinear)
    assert {"float": 13, "4 bits in groups of 128": 2} == weights.stored
    assert "embed_tokens stays in floats: its 64 columns are not a multiple of 128" == weights.notes[0]


@pytest.mark.parametrize("name", ["qwen3_moe", "phi3"])
def test_one_matrix_at_a_time(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a checkpoint has, and in however many files."""
    read: list[weakref.ref[torch.Tensor]] = []
    parts = TensorStore.parts

    def watched(self: TensorStore, source: WeightSource) -> Iterator[torch.Tensor]:
        for tensor in parts(self, source):
            assert 1 >= sum(t is not None and t.dim() == 2 for t in (each() for each in read))
            read.append(weakref.ref(tensor))
            yield tensor

    monkeypatch.setattr(TensorStore, "parts", watched)
    families.write(tmp_path, name, max_shard_size="20KB")
    assert 3 < len(list(tmp_path.glob("*.safetensors")))
    done: list[tuple[int, int]] = []
    load_decoder(tmp_path, LlmOptions(quantize="4bit"), lambda phase, at, of: done.append((at, of)))
    assert [(k, len(done)) for k in range(len(done))] == done
    assert 15 < len(read)


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
            "/model.safetensors: model.norm.weight has the shape [60]; config.json requires [64]",
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
    with pytest.raises(ExportError, match=r"; pytorch_model\.bin has an older format, convert it first$"):
        load_decoder(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    write(tmp_path, "qwen3")
    (tmp_path / "model.safetensors").write_bytes(b"no tensors in here")
    with pytest.raises(ExportError, match=re.escape(f"{tmp_path}/model.safetensors: not a safetensors file: ")):
        load_decoder(tmp_path)


LARGE = {"vocab_size": 2**30, "hidden_size": 2**20, "num_key_value_heads": 4, "num_attention_heads": 2**20}
LARGE |= {"head_dim": 2**30, "intermediate_size": 2**30}


@pytest.mark.parametrize("changes", [{key: value} for key, value in LARGE.items()] + [{"num_hidden_layers": 4096}])
def test_a_config_that_asks_for_more_than_there_is(changes: dict[str, int], tmp_path: Path) -> None:
    write(tmp_path, "qwen3")
    (tmp_path / "config.json").write_text(json.dumps(config("qwen3") | changes))
    with pytest.raises(ExportError, match=r"config\.json"):
        load_decoder(tmp_path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../model.safetensors", "sub/model.safetensors", "..", 5, ["x"]])
def test_an_index_that_names_other_files(name: object, tmp_path: Path) -> None:
    message = f"invalid file {name!r}: expected the name of a *.safetensors file beside it"
    write(tmp_path, "qwen3")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(
        ExportError,
        match=f"^{re.escape(f'{index}: {message}')}$",
    ):
        load_decoder(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "[]", "[" * 100_000])
def test_an_index_that_is_none(content: str, tmp_path: Path) -> None:
    write(tmp_path, "qwen3")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ExportError, match=r"index\.json (has no weight_map|does not hold a JSON object|is not JSON)"):
        load_decoder(tmp_path)


def test_links_and_pipes(tmp_path: Path) -> None:
    folder, outside = tmp_path / "models--x" / "snapshots" / "1", tmp_path / "models--x" / "blobs"
    folder.mkdir(parents=True)
    outside.mkdir()
    weights = write(folder, "qwen3") / "model.safetensors"
    for place, works in ((tmp_path / "elsewhere", False), (outside / "1", True)):  # as Hugging Face has them
        weights.rename(place)
        weights.symlink_to(place)
        if works:
            load_decoder(folder)
        else:
            with pytest.raises(ExportError, match=r"model\.safetensors leads out of its folder: replace the link"):
                load_decoder(folder)
        weights.unlink()
        place.rename(weights)
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(ExportError, match=r"model\.safetensors is not a regular file$"):
        load_decoder(folder)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ExportError, match=r"config\.json is not a regular file$"):
        load_decoder(folder)


def header(**tensors: dict[str, object]) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little") + b"{}",
        header(a=ONE | {"shape": [1 << 40]}),
        header(a=ONE | {"shape": [-1]}),
        header(a=ONE | {"data_offsets": [0, 1 << 40]}) + bytes(4),
        header(a=ONE | {"data_offsets": [4, 0]}) + bytes(4),
        header(a=ONE | {"dtype": "X9"}) + bytes(4),
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        header(a=ONE, b=ONE) + bytes(4),
    ],
)
def test_a_header_that_lies(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, "qwen3")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ExportError, match=r"model\.safetensors: not a safetensors file: ") as error:
        load_decoder(tmp_path)
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_is_a_secret(tmp_path: Path) -> None:
    folder, secret = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("secret")
    for name in ("tokenizer.json", "chat_template.jinja"):
        write(folder, "qwen3")
        (folder / "tokenizer.json").write_text("{}")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)
        with pytest.raises(ExportError, match=f"{name} leads out of its folder"):
            export_llm(folder, tmp_path / "made.pte")
        (folder / name).unlink()
    assert not (tmp_path / "made.pte").exists()
