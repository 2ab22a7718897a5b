"""What a family of decoders is described by: a `Family`, in whose terms `families` has one row for each.

A fact is a field of `Config`, or what a layer has. It is a value, or a function that reads it from `config.json`;
where a family says nothing, it is as Llama. `names` are those of modules in checkpoints, by the decoder's names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .keys import Keys

SLIDING, FULL = "sliding_attention", "full_attention"
MOST_LAYERS, MOST_HEADS, MOST_EXPERTS = 1 << 12, 1 << 14, 1 << 12

Names = Mapping[str, str | tuple[str, ...]]
Fact = Callable[[Keys], Any]


def _nothing(keys: Keys) -> str | None:
    return None


def rotary(theta: float = 1e4, share: float = 1.0) -> Callable[[Keys, str], dict[str, Any]]:
    def found(keys: Keys, kind: str) -> dict[str, Any]:
        named = {"rope_theta": keys.get("rope_theta", theta)}
        return named | {"partial_rotary_factor": keys.get("partial_rotary_factor", share)}

    return found


ROTARY = rotary()


@dataclass(frozen=True, slots=True)
class Family:
    title: str  # the models, as people call them
    facts: Mapping[str, Any] = field(default_factory=dict)
    names: Names = field(default_factory=dict)  # where there are several, the first that the checkpoint has
    fused: str = "rows"  # queries, keys, values in one matrix: one after the other, or "groups": by head of keys
    transposed: bool = False  # matrices are (in, out)
    kinds: Callable[[Keys, int], list[str]] = lambda keys, count: [FULL] * count  # of layers
    turned: Callable[[Keys, list[str]], list[bool]] = lambda keys, kinds: [True] * len(kinds)  # rotary layers
    sparse: Callable[[Keys, int], list[bool]] = lambda keys, count: [False] * count  # layers of experts
    rope: Callable[[Keys, str], dict[str, Any]] = ROTARY  # where `rope_parameters` say nothing
    local: bool = False  # layers with a window take no `rope_scaling`
    partial: bool = False  # `partial_rotary_factor` has a meaning
    ropes: Mapping[str, str] = field(default_factory=dict)  # other names for kinds of scaling
    refused: Fact = _nothing  # the key for which a config cannot be had

    @property
    def fused_modules(self) -> frozenset[str]:
        """Those that are rows of one matrix."""
        counts = Counter(self.names.values())
        return frozenset(module for module, name in self.names.items() if counts[name] > 1)


def windows(keys: Keys, count: int) -> list[str]:
    return [SLIDING if keys.get("sliding_window") else FULL] * count


def last_of(key: str, default: int) -> Callable[[Keys, int], list[str]]:
    """The last of every so many layers sees everything."""

    def kinds(keys: Keys, count: int) -> list[str]:
        every = keys.get(key, default) if key else default
        return [FULL if layer % every == every - 1 else SLIDING for layer in range(count)]

    return kinds


def every_layer(keys: Keys, count: int) -> list[bool]:
    return [True] * count


def fused(name: str) -> dict[str, str]:
    return {f"self_attn.{each}_proj": name for each in "qkv"}


LLAMA: dict[str, Any] = {
    "vocab": lambda c: c.count("vocab_size"),
    "dim": lambda c: c.count("hidden_size"),
    "heads": lambda c: c.count("num_attention_heads", most=MOST_HEADS),
    "kv_heads": lambda c: c.count("num_key_value_heads", c["heads"]),
    "head_dim": lambda c: c.count("head_dim", c["dim"] // c["heads"]),
    "hidden": lambda c: c.count("intermediate_size"),
    "depth": lambda c: c.count("num_hidden_layers", most=MOST_LAYERS),
    "eps": lambda c: c.number("rms_norm_eps", 1e-6),
    "activation": lambda c: c.get("hidden_act", "silu"),
    "tied": lambda c: c.flag("tie_word_embeddings"),
    "context": lambda c: c.count("max_position_embeddings", 2048),
    "qkv_bias": lambda c: c.flag("attention_bias"),
    "output_bias": lambda c: c.flag("attention_bias"),
    "mlp_bias": lambda c: c.flag("mlp_bias"),
}
NAMES: dict[str, str] = {  # in checkpoints of most families
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}
