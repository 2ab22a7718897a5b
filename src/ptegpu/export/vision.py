"""The vision part of SmolVLM and Idefics3: a SigLIP tower, and a connector that packs neighbouring patches into a row.

The language model beside it is a `Decoder`, which takes these rows in place of tokens. Modules have the names that
checkpoints use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ExportError
from ..files import read_object
from ..models.kinds import SEEING_TYPES
from ..models.parts import TILE, VisionSpec
from .config import text_config
from .config_keys import MOST_LAYERS, ConfigKeys, interpreting, read_optional
from .transformer import ACTIVATIONS, FullAttention

TEXT, TOWER, CONNECTOR = "text_model.", "vision_model.", "connector."  # prefixes of names in checkpoints


@dataclass(frozen=True, slots=True)
class VisionConfig:
    dim: int
    hidden: int
    layers: int
    heads: int
    eps: float
    activation: str
    size: int  # of a side in pixels
    patch: int  # of a side in pixels
    pack: int  # patches of a side that become one row
    out: int  # dimension of rows

    @property
    def side(self) -> int:
        """The number of patches along a side."""
        return self.size // self.patch


def read_vision(folder: Path) -> tuple[VisionConfig, VisionSpec] | None:
    """Read the vision part of a checkpoint; None if it has no such part."""
    path = folder / "config.json"
    values = read_object(path, ExportError)
    if values.get("model_type") not in SEEING_TYPES:
        return None
    with interpreting(path):
        return _read(path, values, read_optional(folder / "preprocessor_config.json"))


def _read(path: Path, values: Mapping[str, Any], pictures: Mapping[str, Any]) -> tuple[VisionConfig, VisionSpec]:
    keys, text = ConfigKeys(path, values.get("vision_config") or {}), ConfigKeys(path, text_config(values))
    outer = ConfigKeys(path, values)
    config = VisionConfig(
        dim=keys.count("hidden_size", 1152),
        hidden=keys.count("intermediate_size", 3072),
        layers=keys.count("num_hidden_layers", 12, most=MOST_LAYERS),
        heads=keys.count("num_attention_heads", 16),
        eps=keys.number("layer_norm_eps", 1e-6),
        activation=keys.activation("hidden_act", keys.get("hidden_act", "gelu_pytorch_tanh")),
        size=keys.count("image_size", 224, most=TILE),
        patch=keys.count("patch_size", 32, most=TILE),
        pack=outer.count("scale_factor", 2, most=64),
        out=text.count("hidden_size"),
    )
    if config.dim % config.heads or config.side == 0 or config.side % config.pack:
        raise keys.error("hidden_size and heads, or image_size, patch_size and scale_factor, do not fit together")
    size = (pictures.get("max_image_size") or {}).get("longest_edge", config.size)
    if size != config.size:
        raise keys.error(f"pictures have {size} pixels in preprocessor_config.json, and {config.size} here")
    vision = VisionSpec(
        size=config.size,
        rows=(config.side // config.pack) ** 2,
        dim=config.out,
        token=outer.count("image_token_id"),
        longest=min((pictures.get("size") or {}).get("longest_edge", 4 * config.size), TILE),
        split=bool(pictures.get("do_image_splitting", True)),
        mean=_three(pictures.get("image_mean")),
        std=_three(pictures.get("image_std")),
    )
    vision.check()
    return config, vision


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = map(float, values or (0.5, 0.5, 0.5))
    return red, green, blue


class VisionFeedForward(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.dim, config.hidden, device="meta")
        self.fc2 = nn.Linear(config.hidden, config.dim, device="meta")
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class VisionBlock(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = FullAttention(config.dim, config.heads), VisionFeedForward(config)
        self.layer_norm1 = nn.LayerNorm(config.dim, config.eps, device="meta")
        self.layer_norm2 = nn.LayerNorm(config.dim, config.eps, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class VisionEmbeddings(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, config.dim, config.patch, config.patch, device="meta")
        self.position_embedding = nn.Embedding(config.side**2, config.dim, device="meta")
        side = torch.arange(config.side, dtype=torch.float32) * (1.0 / config.side)
        ends = torch.arange(1 / config.side, 1.0, 1 / config.side)
        at = torch.bucketize(side.clamp(max=1.0 - 1e-6), ends, right=True)  # rounded as in training
        self.places = (at.unsqueeze(1) * config.side + at).flatten()

    def forward(self, pixels: Tensor) -> Tensor:
        positions = self.position_embedding.weight
        if self.places.tolist() != list(range(len(positions))):
            positions = positions[self.places]
        return self.patch_embedding(pixels).flatten(2).transpose(1, 2) + positions


class VisionTower(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(config)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(VisionBlock(config) for _ in range(config.layers))})
        self.post_layernorm = nn.LayerNorm(config.dim, config.eps, device="meta")

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embeddings(pixels)
        for block in self.encoder["layers"]:
            x = block(x)
        return self.post_layernorm(x)


class VisionModel(nn.Module):
    """pixels (1, 3, size, size) → rows (rows, out). Weights are on the device "meta" until they are loaded."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config, self.vision_model = config, VisionTower(config)
        width = config.dim * config.pack**2
        projection = nn.ModuleDict({"proj": nn.Linear(width, config.out, bias=False, device="meta")})
        self.connector = nn.ModuleDict({"modality_projection": projection})

    def forward(self, pixels: Tensor) -> Tensor:
        side, pack, dim = self.config.side, self.config.pack, self.config.dim
        x = self.vision_model(pixels).view(side, side // pack, dim * pack).transpose(0, 1)
        x = x.reshape(side // pack, side // pack, dim * pack * pack).transpose(0, 1)
        return self.connector["modality_projection"]["proj"](x.reshape(-1, dim * pack * pack))
