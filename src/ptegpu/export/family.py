"""The terms in which a family of decoders is described: a `DecoderFamily`. The families themselves are in `families`.

A fact is a field of `DecoderConfig`: a value, or a function that reads it from `config.json`. A family inherits the
facts of Llama. `names` translate the decoder's names of modules into those in checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .config_keys import MOST_HEADS, MOST_LAYERS, ConfigKeys

SLIDING, FULL = "sliding_attention", "full_attention"


def rotary(theta: float = 1e4, share: float = 1.0) -> Callable[[ConfigKeys, str], dict[str, Any]]:
    """Return a reader of older files, with the family's defaults."""
    return lambda keys, layer_type: {
        "rope_theta": keys.get("rope_theta", theta),
        "partial_rotary_factor": keys.get("partial_rotary_factor", share),
    }


ROTARY = rotary()


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    title: str  # the models, as people call them
    facts: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)  # of several, the first in the checkpoint
    fused: str = "rows"  # queries, keys and values in one matrix: consecutive "rows", or "groups" by key-value head
    transposed: bool = False  # matrices are (in, out)
    layer_types: Callable[[ConfigKeys, int], list[str]] = lambda keys, count: [FULL] * count
    rotary_layers: Callable[[ConfigKeys, list[str]], list[bool]] = lambda keys, types: [True] * len(types)
    expert_layers: Callable[[ConfigKeys, int], list[bool]] = lambda keys, count: [False] * count
    rope: Callable[[ConfigKeys, str], dict[str, Any]] = ROTARY  # where `rope_parameters` has no value
    unscaled_windows: bool = False  # layers with a window ignore `rope_scaling`
    partial_rotary: bool = False  # `partial_rotary_factor` has a meaning
    rope_aliases: Mapping[str, str] = field(default_factory=dict)  # other names for types of scaling
    refused: Callable[[ConfigKeys], str | None] = lambda keys: None  # the key whose value is not supported

    @property
    def fused_modules(self) -> frozenset[str]:
        """The modules whose weights are rows of one shared matrix."""
        counts = Counter(self.names.values())
        return frozenset(module for module, name in self.names.items() if counts[name] > 1)


def all_windows(keys: ConfigKeys, count: int) -> list[str]:
    return [SLIDING if keys.get("sliding_window") else FULL] * count


def last_full(key: str, default: int) -> Callable[[ConfigKeys, int], list[str]]:
    """Return layer types of which the last in every `keys[key]` layers has full attention."""

    def layer_types(keys: ConfigKeys, count: int) -> list[str]:
        every = keys.get(key, default) if key else default
        return [FULL if layer % every == every - 1 else SLIDING for layer in range(count)]

    return layer_types


def fused_qkv(name: str) -> dict[str, str]:
    return {f"self_attn.{letter}_proj": name for letter in "qkv"}


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
