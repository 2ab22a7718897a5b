"""Whisper as three modules that export: sound to log-mel, log-mel to keys and values, tokens to logits.

Called as they are, they are plain PyTorch, so that they are a reference; exported, attention is the GPU's operator.
Modules of the encoder and the decoder have the names that checkpoints use.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.media import slaney_filters
from .decoder import ACTIVATIONS
from .sound import Config

FLOOR = 1e-10  # of power, before the logarithm


class LogMel(nn.Module):
    """samples (1, (F + 2) · hop) → log10 of the power in each band, (F, mels). Frame k begins at sample k · hop."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.hop, self.frames, self.width = config.hop, config.frames, config.window
        bins = config.window // 2 + 1
        n = np.arange(config.window)
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / config.window)
        turns = 2 * np.pi * (np.outer(np.arange(bins), n) % config.window) / config.window
        self.register_buffer("cosines", torch.tensor(np.cos(turns) * hann, dtype=torch.float32))  # (bins, window)
        self.register_buffer("sines", torch.tensor(np.sin(turns) * hann, dtype=torch.float32))
        bands = np.ascontiguousarray(slaney_filters(config.mels, config.rate, bins).T)
        self.register_buffer("bands", torch.tensor(bands, dtype=torch.float32))  # (mels, bins)

    def forward(self, samples: Tensor) -> Tensor:
        hops = samples.view(-1, self.hop)
        pieces = [
            hops[k : k + self.frames, : min(self.hop, self.width - k * self.hop)]
            for k in range(-(-self.width // self.hop))
        ]
        frames = torch.cat(pieces, dim=1)  # (F, window)
        real, imaginary = F.linear(frames, self.cosines), F.linear(frames, self.sines)  # (F, bins)
        power = F.linear(real * real + imaginary * imaginary, self.bands)  # (F, mels)
        return torch.log(power.clamp(min=FLOOR)) * (1 / math.log(10))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.q_proj = nn.Linear(dim, dim, device="meta")
        self.k_proj = nn.Linear(dim, dim, bias=False, device="meta")
        self.v_proj = nn.Linear(dim, dim, device="meta")
        self.out_proj = nn.Linear(dim, dim, device="meta")

    def split(self, x: Tensor) -> Tensor:
        """(1, S, H, D)"""
        return x.view(1, x.shape[1], self.heads, self.head_dim)

    def over(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (1, S, H, D) over all of k and v (1, T, H, D)."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if torch.compiler.is_exporting():
            y = torch.ops.et_vk.sdpa(q, k, v, None, self.head_dim**-0.5)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(y.transpose(1, 2).reshape(1, -1, self.heads * self.head_dim))


class FeedForward(nn.Module):
    """Parts of a block that checkpoints name without a level of their own."""

    def __init__(self, dim: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(dim, device="meta")
        self.final_layer_norm = nn.LayerNorm(dim, device="meta")
        self.fc1 = nn.Linear(dim, hidden, device="meta")
        self.fc2 = nn.Linear(hidden, dim, device="meta")
        self.activation = ACTIVATIONS[activation]

    def fed(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))


class EncoderBlock(FeedForward):
    def __init__(self, config: Config) -> None:
        super().__init__(config.dim, config.encoder_hidden, config.activation)
        self.self_attn = Attention(config.dim, config.encoder_heads)

    def forward(self, x: Tensor) -> Tensor:
        a, y = self.self_attn, self.self_attn_layer_norm(x)
        return self.fed(x + a.over(a.split(a.q_proj(y)), a.split(a.k_proj(y)), a.split(a.v_proj(y))))


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.mels, config.dim, 3, padding=1, device="meta")
        self.conv2 = nn.Conv1d(config.dim, config.dim, 3, stride=2, padding=1, device="meta")
        self.embed_positions = nn.Embedding(config.frames // 2, config.dim, device="meta")
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(config.dim, device="meta")

    def forward(self, mel: Tensor) -> Tensor:
        """mel (1, mels, F) → (1, F / 2, dim)"""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.embed_positions.weight
        for block in self.layers:
            x = block(x)
        return self.layer_norm(x)


class DecoderBlock(FeedForward):
    def __init__(self, config: Config) -> None:
        super().__init__(config.dim, config.decoder_hidden, config.activation)
        self.self_attn = Attention(config.dim, config.decoder_heads)
        self.encoder_attn = Attention(config.dim, config.decoder_heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.dim, device="meta")
        cache = (1, config.context, config.decoder_heads, config.dim // config.decoder_heads)
        self.register_buffer("keys", torch.zeros(cache), persistent=False)
        self.register_buffer("values", torch.zeros(cache), persistent=False)

    def forward(self, x: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
        x = x + self._before(self.self_attn_layer_norm(x), start)
        a = self.encoder_attn
        x = x + a.over(a.split(a.q_proj(self.encoder_attn_layer_norm(x))), keys, values)
        return self.fed(x)

    def _before(self, x: Tensor, start: int) -> Tensor:
        """Over the tokens so far, these included."""
        a, length = self.self_attn, x.shape[1]
        q, k, v = a.split(a.q_proj(x)), a.split(a.k_proj(x)), a.split(a.v_proj(x))
        if torch.compiler.is_exporting():
            torch.ops.llama.update_cache(k, self.keys, start)
            torch.ops.llama.update_cache(v, self.values, start)
            y = torch.ops.llama.custom_sdpa(q, self.keys, self.values, start, None, 0.0, True, a.head_dim**-0.5)
        else:
            self.keys[:, start : start + length] = k
            self.values[:, start : start + length] = v
            k, v = self.keys[:, : start + length], self.values[:, : start + length]
            seen = torch.ones(length, start + length, dtype=torch.bool).tril(start)
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2)
        return a.out_proj(y.reshape(1, length, -1))


class Decoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.scale = math.sqrt(config.dim) if config.scaled else 1.0
        self.embed_tokens = nn.Embedding(config.vocab, config.dim, device="meta")
        self.embed_positions = nn.Embedding(config.context, config.dim, device="meta")
        self.layers = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.layer_norm = nn.LayerNorm(config.dim, device="meta")


class Whisper(nn.Module):
    """Weights are on the device "meta" until a checkpoint is loaded into it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.proj_out = nn.Linear(config.dim, config.vocab, bias=False, device="meta")


class Encode(nn.Module):
    """mel (1, mels, F) → for each layer of the decoder, keys and values (1, F / 2, H, D) of what was heard."""

    def __init__(self, model: Whisper) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.attentions = nn.ModuleList(block.encoder_attn for block in model.decoder.layers)

    def forward(self, mel: Tensor) -> list[Tensor]:
        heard = self.encoder(mel)
        return [a.split(project(heard)) for a in self.attentions for project in (a.k_proj, a.v_proj)]


class Decode(nn.Module):
    """tokens (1, S) of which the first is at `position` (1), and what `Encode` gives → logits of the last (1, V)."""

    def __init__(self, model: Whisper) -> None:
        super().__init__()
        self.context, self.decoder, self.proj_out = model.config.context, model.decoder, model.proj_out

    def forward(self, tokens: Tensor, position: Tensor, heard: list[Tensor]) -> Tensor:
        length, start, decoder = tokens.shape[1], position[0].item(), self.decoder
        if torch.compiler.is_exporting():
            torch._check(start >= 0)
            torch._check(start + length <= self.context)
        x = decoder.embed_tokens(tokens) * decoder.scale + decoder.embed_positions.weight.narrow(0, start, length)
        for k, block in enumerate(decoder.layers):
            x = block(x, start, heard[2 * k], heard[2 * k + 1])
        return self.proj_out(decoder.layer_norm(x[:, -1]))
