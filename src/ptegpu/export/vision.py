"""What SmolVLM and Idefics3 see with: a SigLIP tower and a connector that packs neighbouring patches into one row.

The language model beside them is a `Decoder`, which takes these rows in place of tokens. Modules have the names that
checkpoints use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ExportError, PtegpuError
from ..files import read_object
from ..models.kinds import SEEING_TYPES
from ..models.parts import TILE
from ..models.parts import Vision as Seeing
from .config import ACTIVATIONS as SUPPORTED
from .config import text_config
from .decoder import ACTIVATIONS
from .family import MOST_LAYERS
from .keys import Keys

TEXT, TOWER, CONNECTOR = "text_model.", "vision_model.", "connector."  # what names in checkpoints begin with


@dataclass(frozen=True, slots=True)
class VisionConfig:
    dim: int
    hidden: int
    layers: int
    heads: int
    eps: float
    activation: str
    size: int  # pixels of a side
    patch: int  # pixels of a side
    pack: int  # patches of a side that become one row
    out: int  # dimension of rows

    @property
    def side(self) -> int:
        """In patches."""
        return self.size // self.patch

    @property
    def rows(self) -> int:
        return (self.side // self.pack) ** 2


def read_vision(folder: Path) -> tuple[VisionConfig, Seeing] | None:
    """What a checkpoint sees with; None if it does not."""
    path = folder / "config.json"
    given = read_object(path, ExportError)
    if given.get("model_type") not in SEEING_TYPES:
        return None
    try:
        preprocessor = folder / "preprocessor_config.json"
        return _read(path, given, read_object(preprocessor, ExportError) if preprocessor.is_file() else {})
    except PtegpuError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as e:  # values of another kind
        raise ExportError(f"{path} cannot be understood: {e}") from None


def _read(path: Path, given: Mapping[str, Any], pictures: Mapping[str, Any]) -> tuple[VisionConfig, Seeing]:
    keys, text = Keys(path, given.get("vision_config") or {}), Keys(path, text_config(given))
    config = VisionConfig(
        dim=keys.count("hidden_size", 1152),
        hidden=keys.count("intermediate_size", 3072),
        layers=keys.count("num_hidden_layers", 12, most=MOST_LAYERS),
        heads=keys.count("num_attention_heads", 16),
        eps=keys.number("layer_norm_eps", 1e-6),
        activation=str(keys.get("hidden_act", "gelu_pytorch_tanh")),
        size=keys.count("image_size", 224, most=TILE),
        patch=keys.count("patch_size", 32, most=TILE),
        pack=Keys(path, given).count("scale_factor", 2, most=64),
        out=text.count("hidden_size"),
    )
    if config.activation not in SUPPORTED:
        raise keys.error(f"hidden_act {config.activation!r} is not supported; supported are {', '.join(SUPPORTED)}")
    if config.dim % config.heads or config.side == 0 or config.side % config.pack:
        raise keys.error("hidden_size and heads, or image_size, patch_size and scale_factor, do not fit together")
    size = (pictures.get("max_image_size") or {}).get("longest_edge", config.size)
    if size != config.size:
        raise keys.error(f"pictures have {size} pixels in preprocessor_config.json, and {config.size} here")
    seeing = Seeing(
        size=config.size,
        rows=config.rows,
        dim=config.out,
        token=Keys(path, given).count("image_token_id"),
        longest=min((pictures.get("size") or {}).get("longest_edge", 4 * config.size), TILE),
        split=bool(pictures.get("do_image_splitting", True)),
        mean=_three(pictures.get("image_mean")),
        std=_three(pictures.get("image_std")),
    )
    seeing.check()
    return config, seeing


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = map(float, values or (0.5, 0.5, 0.5))
    return red, green, blue


class Attention(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.dim // config.heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(config.dim, config.dim, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).view(1, -1, self.heads, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if torch.compiler.is_exporting():
            y = torch.ops.et_vk.sdpa(q, k, v, None, self.head_dim**-0.5)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(y.transpose(1, 2).reshape(1, -1, self.heads * self.head_dim))


class FeedForward(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.dim, config.hidden, device="meta")
        self.fc2 = nn.Linear(config.hidden, config.dim, device="meta")
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), FeedForward(config)
        self.layer_norm1 = nn.LayerNorm(config.dim, config.eps, device="meta")
        self.layer_norm2 = nn.LayerNorm(config.dim, config.eps, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Embeddings(nn.Module):
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


class Tower(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(Block(config) for _ in range(config.layers))})
        self.post_layernorm = nn.LayerNorm(config.dim, config.eps, device="meta")

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embeddings(pixels)
        for block in self.encoder["layers"]:
            x = block(x)
        return self.post_layernorm(x)


class Vision(nn.Module):
    """pixels (1, 3, size, size) → rows (rows, out). Weights are on the device "meta" until they are loaded."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config, self.vision_model = config, Tower(config)
        width = config.dim * config.pack**2
        projection = nn.ModuleDict({"proj": nn.Linear(width, config.out, bias=False, device="meta")})
        self.connector = nn.ModuleDict({"modality_projection": projection})

    def forward(self, pixels: Tensor) -> Tensor:
        side, pack, dim = self.config.side, self.config.pack, self.config.dim
        x = self.vision_model(pixels).view(side, side // pack, dim * pack).transpose(0, 1)
        x = x.reshape(side // pack, side // pack, dim * pack * pack).transpose(0, 1)
        return self.connector["modality_projection"]["proj"](x.reshape(-1, dim * pack * pack))
