"""A BERT encoder in PyTorch that turns token ids into one unit vector per text, and its weights from a checkpoint.

Works for any batch and length up to the table of positions, and exports with both dynamic. The program that comes of
it is one plan for the GPU. Token types are not an input: single texts only have type 0, whose embedding is part of the
positions here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HIDDEN = -1e9  # added to the scores of padding


@dataclass(frozen=True, slots=True)
class Config:
    """The shape of all-MiniLM-L6-v2, unless told otherwise."""

    vocabulary: int = 30522
    positions: int = 512
    width: int = 384
    heads: int = 12
    inner: int = 1536
    layers: int = 6
    epsilon: float = 1e-12


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.norm = nn.LayerNorm(config.width, config.epsilon)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """tokens (B, T) and mask (B, T), 0 at padding and else 1, both int64 → unit vectors (B, width)."""
        real = mask.to(torch.float32)
        bias = ((1 - real) * HIDDEN)[:, None, None]  # (B, 1, 1, T)
        x = self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]])  # (B, T, width)
        for layer in self.layers:
            x = layer(x, bias)
        total = (real[:, None] @ x)[:, 0]  # the mean but for a factor, which the length takes out
        return total * torch.rsqrt((total * total).sum(-1, keepdim=True))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.attention_norm = nn.LayerNorm(config.width, config.epsilon)
        self.up = nn.Linear(config.width, config.inner)
        self.down = nn.Linear(config.inner, config.width)
        self.output_norm = nn.LayerNorm(config.width, config.epsilon)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, T, D)
        attended = attention(q, k, v, bias).transpose(1, 2).reshape(batch, length, width)
        x = self.attention_norm(x + self.out(attended))
        return self.output_norm(x + self.down(F.gelu(self.up(x))))


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """In an exported program a single operator; of PyTorch's own the exporter makes a dozen."""
    if torch.compiler.is_exporting():
        return torch.ops.et_vk.sdpa.default(q, k, v, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def from_checkpoint(folder: Path) -> Encoder:
    """An encoder with the weights of a Hugging Face BERT: `config.json` and `model.safetensors`."""
    from safetensors.torch import load_file

    settings = json.loads((folder / "config.json").read_text("utf-8"))
    config = Config(
        vocabulary=settings["vocab_size"],
        positions=settings["max_position_embeddings"],
        width=settings["hidden_size"],
        heads=settings["num_attention_heads"],
        inner=settings["intermediate_size"],
        layers=settings["num_hidden_layers"],
        epsilon=settings["layer_norm_eps"],
    )
    encoder = Encoder(config)
    encoder.load_state_dict(renamed(load_file(folder / "model.safetensors"), config.layers))
    return encoder.eval()


def renamed(weights: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """A checkpoint's tensors by our names."""
    positions = weights["embeddings.position_embeddings.weight"]
    ours = {
        "words.weight": weights["embeddings.word_embeddings.weight"],
        "positions.weight": positions + weights["embeddings.token_type_embeddings.weight"][0],
    }
    for kind in ("weight", "bias"):
        ours[f"norm.{kind}"] = weights[f"embeddings.LayerNorm.{kind}"]
        for n in range(layers):
            layer = f"encoder.layer.{n}"
            qkv = [weights[f"{layer}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            ours[f"layers.{n}.qkv.{kind}"] = torch.cat(qkv)
            ours[f"layers.{n}.out.{kind}"] = weights[f"{layer}.attention.output.dense.{kind}"]
            ours[f"layers.{n}.attention_norm.{kind}"] = weights[f"{layer}.attention.output.LayerNorm.{kind}"]
            ours[f"layers.{n}.up.{kind}"] = weights[f"{layer}.intermediate.dense.{kind}"]
            ours[f"layers.{n}.down.{kind}"] = weights[f"{layer}.output.dense.{kind}"]
            ours[f"layers.{n}.output_norm.{kind}"] = weights[f"{layer}.output.LayerNorm.{kind}"]
    return ours


def export_encoder(encoder: Encoder, batch: int, tokens: int) -> bytes:
    """A `.pte` for any batch and any number of tokens up to these."""
    from ptegpu.export import export  # defines et_vk.sdpa

    some = torch.ones((2, 16), dtype=torch.int64)
    dims = {0: torch.export.Dim("batch", min=1, max=batch), 1: torch.export.Dim("tokens", min=1, max=tokens)}
    return export(encoder, (some, some.clone()), dynamic_shapes=(dims, dims))
