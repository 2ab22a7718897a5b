"""The parts that decoders, vision towers and Whisper share.

Called as they are, they compute in plain PyTorch; exported, attention is one operator of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new"), lambda x: F.gelu(x, approximate="tanh")),
}


class FullAttention(nn.Module):
    """Attention without a mask, with the names of modules in checkpoints."""

    def __init__(self, dim: int, heads: int, *, key_bias: bool = True) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.q_proj = nn.Linear(dim, dim, device="meta")
        self.k_proj = nn.Linear(dim, dim, bias=key_bias, device="meta")
        self.v_proj = nn.Linear(dim, dim, device="meta")
        self.out_proj = nn.Linear(dim, dim, device="meta")

    def split(self, x: Tensor) -> Tensor:
        """Return (1, S, dim) as (1, S, H, D)."""
        return x.view(1, x.shape[1], self.heads, self.head_dim)

    def forward(self, x: Tensor) -> Tensor:
        shape = 1, -1, self.heads, self.head_dim
        projections = self.q_proj, self.k_proj, self.v_proj
        return self.attend(*(project(x).view(shape).transpose(1, 2) for project in projections))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (1, S, dim) for q (1, H, S, D), k and v (1, H, T, D)."""
        if torch.compiler.is_exporting():
            y = torch.ops.et_vk.sdpa(q, k, v, None, self.head_dim**-0.5)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(y.transpose(1, 2).reshape(1, -1, self.heads * self.head_dim))


class KeyValueCache(nn.Module):
    """A base of modules that keep the keys and values of all tokens so far, each (1, context, H, D)."""

    keys: Tensor
    values: Tensor

    def allocate(self, context: int, heads: int, head_dim: int) -> None:
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, context, heads, head_dim), persistent=False)

    def append(self, k: Tensor, v: Tensor, start: int) -> None:
        """Store k and v (1, S, H, D) of the tokens from position `start` on."""
        if torch.compiler.is_exporting():
            torch.ops.llama.update_cache(k, self.keys, start)
            torch.ops.llama.update_cache(v, self.values, start)
        else:
            self.keys[:, start : start + k.shape[1]] = k
            self.values[:, start : start + v.shape[1]] = v


def check_position(start: int, length: int, context: int) -> None:
    """Let `torch.export` know that the tokens of a call fit into the context."""
    if torch.compiler.is_exporting():
        torch._check(start >= 0)
        torch._check(start + length <= context)
