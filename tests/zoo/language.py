"""A language model of one layer with random weights and the vocabulary of `words.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import executorch.extension.llm.custom_ops.custom_ops  # noqa: F401  (llama::update_cache, llama::custom_sdpa)
import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn
from torch.nn import functional as F

from tests.exporting import cache_patterns, quiet
from tests.zoo.words import VOCABULARY

from .specimen import Specimen

CONTEXT = 96


class TinyLM(nn.Module):
    """A model with a cache; `logits` is the reference without one, over all tokens so far."""

    def __init__(self, *, every: bool = False, dim: int = 32, heads: int = 2) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.every, self.heads = every, heads
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.positions = nn.Parameter(torch.randn(CONTEXT, dim))
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, CONTEXT, heads, dim // heads), persistent=False)

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:  # (1, S), (1)
        length, start = tokens.shape[1], position[0].item()
        torch._check(start >= 0)
        torch._check(start + length <= CONTEXT)
        x = self.embedding(tokens) + self.positions.narrow(0, start, length)
        q, k, v = (part.view(1, length, self.heads, -1) for part in self.qkv(x).chunk(3, -1))
        torch.ops.llama.update_cache(k, self.keys, start)
        torch.ops.llama.update_cache(v, self.values, start)
        y = torch.ops.llama.custom_sdpa(q, self.keys, self.values, start, None, 0.0, True)
        x = x + self.out(y.view(1, length, -1))
        return self.head(x if self.every else x[:, -1])

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Return the logits of all positions, (S, V), without a cache."""
        ids = torch.tensor([tokens])
        x = self.embedding(ids) + self.positions[: len(tokens)]
        q, k, v = (part.view(1, len(tokens), self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, len(tokens), -1)
        return self.head(x + self.out(y))[0].detach()

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        """Return the greedy continuation, computed without a cache."""
        sequence = list(tokens)
        for _ in range(count):
            sequence.append(int(self.logits(sequence)[-1].argmax()))
        return sequence[len(tokens) :]


def export(module: TinyLM, path: Path, chunk: int = CONTEXT - 1, **constants: Any) -> None:
    cache_patterns()
    constants = {"get_max_context_len": CONTEXT, "get_vocab_size": VOCABULARY, "use_kv_cache": True} | constants
    with quiet(), torch.no_grad():
        example = (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        dynamic = ({1: torch.export.Dim("length", min=1, max=chunk)}, None) if chunk > 1 else None
        example = example if chunk > 1 else (example[0][:, :1], example[1])
        program = torch.export.export(module.eval(), example, dynamic_shapes=dynamic)
        lowered = to_edge_transform_and_lower(
            program,
            partitioner=[VulkanPartitioner({})],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
            constant_methods=constants,
        )
        path.write_bytes(lowered.to_executorch().buffer)


SPECIMENS = {
    "logits of the last position": Specimen(TinyLM, lambda: (torch.tensor([[5, 9, 2]]), torch.tensor([0]))),
    "logits of all positions": Specimen(
        lambda: TinyLM(every=True), lambda: (torch.tensor([[5, 9, 2]]), torch.tensor([0]))
    ),
}
