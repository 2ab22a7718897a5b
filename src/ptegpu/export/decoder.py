"""One decoder-only transformer for all families, which exports into one partition.

`forward(tokens (1, S), position (1))` reads S tokens of which the first is at `position`, keeps their keys and values,
and returns the logits of the last token, (1, V), or of all, (1, S, V). Called as it is, it is plain PyTorch and serves
as the reference; exported, norms, rotary embedding and attention are the operators that the GPU has for them.
`DecoderConfig` holds what differs between families.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import DecoderConfig, ExpertsConfig, LayerConfig, Rope
from .experts import FloatExperts, top_experts
from .layers import apply_all
from .transformer import ACTIVATIONS, KeyValueCache, check_position


class DecoderNorm(nn.Module):
    """A norm of the last dimension. A weight (H, D) has a row for each head."""

    def __init__(self, config: DecoderConfig, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.kind, self.eps = config.norm, config.eps
        self.weight = nn.Parameter(torch.empty(shape, device="meta"))
        biased = self.kind == "layer" and config.norm_bias and len(shape) == 1
        self.bias = nn.Parameter(torch.empty(shape, device="meta")) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer":
            if self.weight.dim() > 1:
                return F.layer_norm(x, (x.shape[-1],), None, None, self.eps) * self.weight
            return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)
        if torch.compiler.is_exporting():
            return torch.ops.et_vk.rms_norm(x, self.weight, self.eps)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


class RotaryTable(nn.Module):
    """Cosines and sines of every position, (context, R)."""

    def __init__(self, rope: Rope, context: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context, dtype=torch.float32), rope.frequencies(context))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos() * rope.scale, persistent=False)
        self.register_buffer("sin", angles.sin() * rope.scale, persistent=False)

    def forward(self, q: Tensor, k: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Rotate the first R elements of q (1, S, H, D) and k (1, S, H', D) by the angles of their positions."""
        if torch.compiler.is_exporting():
            return torch.ops.et_vk.apply_rotary_emb_hf(q, k, self.cos, self.sin, start)
        cos = self.cos.narrow(0, start, q.shape[1]).unsqueeze(1)  # (S, 1, R)
        sin = self.sin.narrow(0, start, q.shape[1]).unsqueeze(1)
        return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotated, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rotated.chunk(2, dim=-1)
    return torch.cat((rotated * cos + torch.cat((-second, first), dim=-1) * sin, rest), dim=-1)


class AttentionMask(nn.Module):
    """A mask to add to scores, (S, context): 0 for the positions that a query attends to, else -inf."""

    def __init__(self, window: int | None, context: int) -> None:
        super().__init__()
        self.window = window
        self.register_buffer("positions", torch.arange(context, dtype=torch.int32), persistent=False)
        self.register_buffer("hidden", torch.tensor(float("-inf")), persistent=False)
        self.register_buffer("visible", torch.tensor(0.0), persistent=False)

    def forward(self, start: int, length: int) -> Tensor:
        distance = self.positions.narrow(0, start, length).unsqueeze(1) - self.positions.unsqueeze(0)
        hidden = distance < 0
        if self.window is not None:
            hidden = hidden | (distance >= self.window)
        return torch.where(hidden, self.hidden, self.visible)


class DecoderAttention(KeyValueCache):
    def __init__(self, config: DecoderConfig, context: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.attention_scale or config.head_dim**-0.5
        self.cap = config.attention_cap
        wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, wide, bias=config.qkv_bias, device="meta")
        self.k_proj = nn.Linear(config.dim, narrow, bias=config.qkv_bias, device="meta")
        self.v_proj = nn.Linear(config.dim, narrow, bias=config.qkv_bias, device="meta")
        self.o_proj = nn.Linear(wide, config.dim, bias=config.output_bias, device="meta")
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm, self.k_norm = (
                DecoderNorm(config, {"head": (d,), "heads": (n, d), "row": (n * d,)}[config.qk_norm])
                for n, d in ((config.heads, config.head_dim), (config.kv_heads, config.head_dim))
            )
        self.allocate(context, config.kv_heads, config.head_dim)

    def forward(self, x: Tensor, start: int, rotary: nn.Module | None, mask: Tensor | None) -> Tensor:
        length = x.shape[1]
        q, k, v = apply_all([self.q_proj, self.k_proj, self.v_proj], x)
        if self.qk_norm == "row":
            q, k = self.q_norm(q), self.k_norm(k)
        q = q.view(1, length, self.heads, self.head_dim)
        k = k.view(1, length, self.kv_heads, self.head_dim)
        v = v.view(1, length, self.kv_heads, self.head_dim)
        if self.qk_norm in ("head", "heads"):
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotary(q, k, start)
        self.append(k, v, start)
        if torch.compiler.is_exporting() and self.cap is None:
            causal = mask is None
            y = torch.ops.llama.custom_sdpa(q, self.keys, self.values, start, mask, 0.0, causal, self.scale)
        else:
            assert mask is not None
            y = self._attend(q, mask)
        return self.o_proj(y.view(1, length, self.heads * self.head_dim))

    def _attend(self, q: Tensor, mask: Tensor) -> Tensor:
        """Return attention over the full cache in plain operators: (1, S, H, D)."""
        keys = self.keys[0].permute(1, 2, 0)  # (H', D, context)
        values = self.values[0].transpose(0, 1)  # (H', context, D)
        results, sharing = [], self.heads // self.kv_heads
        for query in q.view(q.shape[1], self.kv_heads, sharing, self.head_dim).unbind(2):
            scores = torch.bmm(query.transpose(0, 1), keys) * self.scale  # (H', S, context)
            if self.cap is not None:
                scores = torch.tanh(scores / self.cap) * self.cap
            results.append(torch.bmm(torch.softmax(scores + mask, dim=-1), values).transpose(0, 1))
        return torch.stack(results, dim=2)


class DecoderFeedForward(nn.Module):
    def __init__(self, config: DecoderConfig, hidden: int) -> None:
        super().__init__()
        self.gated, self.activation = config.gated, ACTIVATIONS[config.activation]
        if config.gated:
            self.gate_proj = nn.Linear(config.dim, hidden, bias=config.mlp_bias, device="meta")
        self.up_proj = nn.Linear(config.dim, hidden, bias=config.mlp_bias, device="meta")
        self.down_proj = nn.Linear(hidden, config.dim, bias=config.mlp_bias, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.down_proj(self.activation(self.up_proj(x)))
        gate, up = apply_all([self.gate_proj, self.up_proj], x)
        return self.down_proj(self.activation(gate) * up)


class Router(nn.Linear):
    """A layer that scores experts for each token; never quantized."""


class MixtureOfExperts(nn.Module):
    """Experts, of which a router chooses a few for each token."""

    def __init__(self, config: DecoderConfig, experts: ExpertsConfig) -> None:
        super().__init__()
        dim, hidden, count = config.dim, experts.hidden, experts.count
        self.chosen, self.normalised = experts.chosen, experts.normalised
        self.activation = ACTIVATIONS[config.activation]
        self.gate = Router(dim, count, bias=False, device="meta")
        self.expert_gate, self.expert_up = FloatExperts(count, hidden, dim), FloatExperts(count, hidden, dim)
        self.expert_down = FloatExperts(count, dim, hidden)
        self.shared_expert = DecoderFeedForward(config, experts.shared) if experts.shared else None
        self.shared_expert_gate = Router(dim, 1, bias=False, device="meta") if experts.shared else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(x.shape[1], x.shape[2])
        scores = self.gate(rows)
        if self.normalised:  # only the scores of the chosen experts matter
            scores, chosen = top_experts(scores, self.chosen)  # (S, A)
            shares = torch.softmax(scores, dim=-1)
        else:
            shares, chosen = top_experts(torch.softmax(scores, dim=-1), self.chosen)
        inner = self.activation(self.expert_gate(rows, chosen)) * self.expert_up(rows, chosen)  # (S, A, hidden)
        y = torch.bmm(shares.unsqueeze(1), self.expert_down(inner, chosen)).view(rows.shape)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            y = y + torch.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        return y.view(x.shape)


class DecoderBlock(nn.Module):
    def __init__(self, config: DecoderConfig, layer: LayerConfig, context: int) -> None:
        super().__init__()
        self.self_attn = DecoderAttention(config, context)
        experts = config.experts if layer.sparse else None
        self.mlp = MixtureOfExperts(config, experts) if experts else DecoderFeedForward(config, config.hidden)
        self.parallel, self.scale = config.parallel, config.residual_scale
        before, after = config.norms != "after", config.norms != "before"
        self.attention_norm = DecoderNorm(config, (config.dim,)) if before else None
        self.mlp_norm = DecoderNorm(config, (config.dim,)) if before and not config.shared_norm else None
        self.attention_out_norm = DecoderNorm(config, (config.dim,)) if after else None
        self.mlp_out_norm = DecoderNorm(config, (config.dim,)) if after else None

    def forward(self, x: Tensor, start: int, rotary: nn.Module | None, mask: Tensor | None) -> Tensor:
        normed = _apply(self.attention_norm, x)
        y = self._scaled(_apply(self.attention_out_norm, self.self_attn(normed, start, rotary, mask)))
        if self.parallel:
            return x + y + self._scaled(self.mlp(normed if self.mlp_norm is None else self.mlp_norm(x)))
        x = x + y
        return x + self._scaled(_apply(self.mlp_out_norm, self.mlp(_apply(self.mlp_norm, x))))

    def _scaled(self, y: Tensor) -> Tensor:
        return y if self.scale == 1.0 else y * self.scale


def _apply(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class LearnedPositions(nn.Module):
    """A learned row for every position, (context, dim)."""

    def __init__(self, config: DecoderConfig, context: int) -> None:
        super().__init__()
        self.context = context
        self.weight = nn.Parameter(torch.empty((config.context, config.dim), device="meta"))

    def forward(self, start: int, length: int) -> Tensor:
        return self.weight.narrow(0, start, length)


class Decoder(nn.Module):
    """The decoder. Its weights are on the device "meta" until a checkpoint is loaded."""

    def __init__(self, config: DecoderConfig, context: int, *, all_logits: bool = False) -> None:
        super().__init__()
        self.config, self.context, self.all_logits = config, context, all_logits
        self.embed_tokens = nn.Embedding(config.vocab, config.dim, device="meta")
        self.embed_positions = LearnedPositions(config, context) if config.learned_positions else None
        self.layers = nn.ModuleList(DecoderBlock(config, layer, context) for layer in config.layers)
        self.norm = DecoderNorm(config, (config.dim,))
        self.lm_head = nn.Linear(config.dim, config.vocab, bias=config.head_bias, device="meta")
        ropes = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope))
        self.rotaries = nn.ModuleList(RotaryTable(rope, context) for rope in ropes)
        self.rotary_of = [ropes.index(layer.rope) if layer.rope else None for layer in config.layers]
        by_layer = [w if (w := layer.window) is not None and w < context else None for layer in config.layers]
        windows = list(dict.fromkeys(by_layer))
        self.windows = nn.ModuleList(AttentionMask(window, context) for window in windows)
        self.window_of = [windows.index(window) for window in by_layer]

    def forward(
        self, tokens: Tensor, position: Tensor, kept: Tensor | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """Return logits. `rows` (1, S, dim) replace the embeddings of tokens for which `kept` (1, S, 1) is 0.

        Where `kept` is 1, `rows` must be 0.
        """
        length, start = tokens.shape[1], position[0].item()
        check_position(start, length, self.context)
        masks = [self._mask(window, start, length) for window in self.windows]
        x = self.embed_tokens(tokens)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if kept is not None and rows is not None:
            x = x * kept + rows
        if self.embed_positions is not None:
            x = x + self.embed_positions(start, length)
        for block, rotary, window in zip(self.layers, self.rotary_of, self.window_of):
            x = block(x, start, None if rotary is None else self.rotaries[rotary], masks[window])
        x = self.norm(x if self.all_logits else x[:, -1])
        logits = self.lm_head(x)
        if self.config.logit_scale != 1.0:
            logits = logits * self.config.logit_scale
        if self.config.logit_cap is not None:
            logits = torch.tanh(logits / self.config.logit_cap) * self.config.logit_cap
        return logits

    def _mask(self, mask: AttentionMask, start: int, length: int) -> Tensor | None:
        """Return a mask, or None where the operator for attention is causal by itself."""
        if torch.compiler.is_exporting() and mask.window is None and self.config.attention_cap is None:
            return None
        return mask(start, length)

    def reset(self) -> None:
        """Clear the cache."""
        for block in self.layers:
            block.self_attn.keys.zero_()
            block.self_attn.values.zero_()
