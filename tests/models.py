"""Small models that several tests export."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Pre-norm attention and feed-forward, with PyTorch's own attention function."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, D)
        b, t, d = x.shape
        q, k, v = (s.view(b, t, self.heads, -1).transpose(1, 2) for s in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """A transformer encoder over token ids."""

    def __init__(self, layers: int = 2, width: int = 16, heads: int = 2, vocabulary: int = 50) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (B, T) → (B, T, D)
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Decoder(nn.Module):
    """Llama-style, with grouped heads and a KV cache: `forward(tokens (1, S), position (1))` → logits (1, V).

    `logits(tokens)` is the same in plain PyTorch, without a cache.
    """

    def __init__(self, context: int, layers: int = 2, width: int = 32, heads: int = 4, vocabulary: int = 64) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.context, self.heads, self.groups, self.size = context, heads, heads // 2, width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        kv = self.groups * self.size
        shapes = {"q": (width, width), "k": (kv, width), "v": (kv, width), "o": (width, width)}
        shapes |= {"gate": (2 * width, width), "up": (2 * width, width), "down": (width, 2 * width)}
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(k, n, bias=False) for name, (n, k) in shapes.items()}) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(context), 100.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cos", angles.cos())  # (context, D / 2)
        self.register_buffer("sin", angles.sin())
        for k in range(layers):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}{k}", torch.zeros(1, context, self.groups, self.size))

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        length, start = tokens.shape[1], position[0].item()
        torch._check_is_size(start)  # the exporter traces anew and keeps only this
        torch._check(start + length <= self.context)

        def attend(k: int, q: torch.Tensor, key: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = getattr(self, f"keys{k}"), getattr(self, f"values{k}")
            torch.ops.llama.update_cache(key, keys, start)
            torch.ops.llama.update_cache(v, values, start)
            return torch.ops.llama.custom_sdpa(q, keys, values, start, None, 0.0, True)

        return self._run(tokens, start, attend)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        def attend(_: int, q: torch.Tensor, key: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            q, key, v = q.transpose(1, 2), key.transpose(1, 2), v.transpose(1, 2)
            return F.scaled_dot_product_attention(q, key, v, is_causal=True, enable_gqa=True).transpose(1, 2)

        return self._run(tokens, 0, attend).detach()

    def _run(self, tokens: torch.Tensor, start: int, attend: Any) -> torch.Tensor:
        length = tokens.shape[1]
        cos, sin = (t.narrow(0, start, length).view(1, length, 1, -1) for t in (self.cos, self.sin))

        def turn(x: torch.Tensor) -> torch.Tensor:
            a, b = x[..., : self.size // 2], x[..., self.size // 2 :]
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        x = self.embedding(tokens)
        for k, layer in enumerate(self.layers):
            h = self.norms[2 * k](x)
            q, key, v = (layer[n](h).view(1, length, -1, self.size) for n in ("q", "k", "v"))
            x = x + layer["o"](attend(k, turn(q), turn(key), v).reshape(1, length, -1))
            h = self.norms[2 * k + 1](x)
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        return self.head(self.norms[-1](x[:, -1]))
