"""`config.json` of a Hugging Face checkpoint to a `DecoderConfig`, which describes a decoder of any supported family.

The defaults of each family are in `families`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ExportError
from ..files import check_checkpoint, read_object
from ..models.kinds import DECODERS, SEEING_TYPES, architecture
from .config_keys import ConfigKeys, interpreting, read_optional
from .families import FAMILIES
from .family import LLAMA, SLIDING, DecoderFamily

ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies: angle = position · frequency. Wavelengths are compared with the context of training."""

    dim: int  # elements of a head that are rotated
    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency: float = 1.0  # llama3, yarn: waves with fewer turns in training are stretched by `factor`,
    high_frequency: float = 4.0  # those with more turns are not
    original: int = 8192  # positions in training
    scale: float = 1.0  # of cosines and sines
    short: tuple[float, ...] = ()  # longrope: factors of wavelengths within the context of training
    long: tuple[float, ...] = ()  # and beyond it
    truncate: bool = True  # yarn: round the range between low and high frequencies outwards to integers

    def frequencies(self, context: int) -> torch.Tensor:
        """Return (dim / 2) frequencies for texts of up to `context` tokens, in float32 as in training."""
        theta, beyond = self.theta, context > self.original
        if self.kind == "dynamic" and beyond:
            stretch = self.factor * context / self.original - (self.factor - 1)
            theta *= stretch ** (self.dim / (self.dim - 2))
        plain = 1.0 / (theta ** (torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim))
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "longrope":
            return plain / torch.tensor(self.long if beyond else self.short)
        if self.kind == "llama3":
            waves = self.original * plain / (2 * math.pi)
            share = ((waves - self.low_frequency) / (self.high_frequency - self.low_frequency)).clamp(0, 1)
            return (1 - share) * plain / self.factor + share * plain
        if self.kind == "yarn":
            low, high = self._yarn_range()
            share = ((torch.arange(self.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
            return share * plain / self.factor + (1 - share) * plain
        return plain

    def _yarn_range(self) -> tuple[float, float]:
        """Return two indices of frequencies: below the first they are unchanged, above the second fully stretched."""

        def index(turns: float) -> float:
            return self.dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = index(self.high_frequency), index(self.low_frequency)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        return low, high + 1e-3 if low == high else high


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Feed-forward networks from which a router chooses a few for each token, with a weight for each."""

    count: int
    chosen: int  # by each token
    hidden: int
    normalised: bool  # the weights of the chosen ones add up to 1
    shared: int = 0  # hidden size of a gated expert that every token uses in addition; 0: there is no such expert


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The properties that differ from layer to layer."""

    rope: Rope | None  # None: queries and keys carry no position
    window: int | None = None  # tokens that a token attends to, itself included; None: all before it
    sparse: bool = False  # experts in place of one feed-forward network


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    family: str
    vocab: int
    dim: int
    hidden: int  # of the feed-forward network
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerConfig, ...]
    eps: float
    activation: str
    tied: bool  # the output layer is the embedding
    context: int  # positions the model was made for
    trained: int  # positions that need no stretched waves
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False  # of the output layer
    gated: bool = True  # feed-forward: down(act(gate(x)) · up(x)), not down(act(up(x)))
    norm: str = "rms"  # or "layer"
    norm_bias: bool = True  # of layer norms
    norm_offset: float = 0.0  # added to the norms' weights
    norms: str = "before"  # attention and feed-forward, "after" them, or "both"
    parallel: bool = False  # attention and feed-forward have the same input
    shared_norm: bool = False  # and share its norm
    qk_norm: str | None = None  # queries and keys: by "head", by "heads" with weights for each, or the full "row"
    interleaved: bool = False  # the checkpoint rotates neighbours in pairs; once loaded, the decoder rotates halves
    learned_positions: bool = False  # a table that is added to the embedding
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None  # None: 1 / √head_dim
    attention_cap: float | None = None  # scores s become cap · tanh(s / cap)
    logit_scale: float = 1.0
    logit_cap: float | None = None
    experts: ExpertsConfig | None = None  # of the sparse layers
    bos: int = -1  # -1: none
    eos: tuple[int, ...] = ()


def read_config(folder: Path) -> DecoderConfig:
    """Read `config.json` and, for the special tokens, `generation_config.json`."""
    check_checkpoint(folder, ExportError)
    path = folder / "config.json"
    with interpreting(path):
        return _config(folder, ConfigKeys(path, text_config(read_object(path, ExportError))))


def text_config(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part about the language model in the config of a vision-language model; any other config unchanged."""
    if values.get("model_type") not in SEEING_TYPES:
        return values
    inner = values.get("text_config") or {}
    return {"model_type": "llama", **inner, "tie_word_embeddings": values.get("tie_word_embeddings", False)}


def _config(folder: Path, keys: ConfigKeys) -> DecoderConfig:
    name = keys.get("model_type")
    if name not in FAMILIES:
        supported = f"supported are {', '.join((*FAMILIES, *SEEING_TYPES))}"
        other = (a := architecture(keys.values)) and not a.endswith(DECODERS)
        hint = ". `ptegpu export hf` exports models that do not generate text" if other else ""
        raise keys.error(f"model_type {name!r} is not supported; {supported}{hint}")
    if keys.get("use_bidirectional_attention"):
        raise keys.error("use_bidirectional_attention is not supported: text is generated from left to right")
    if keys.get("quantization_config"):
        raise keys.error("the weights are quantized already; export the original checkpoint")
    family = FAMILIES[name]
    fields = keys.fields
    fields["family"] = name
    if reason := family.refused(keys):
        raise keys.error(f"{reason} is not supported for {name}")
    for field, fact in (LLAMA | dict(family.facts)).items():
        fields[field] = fact(keys) if callable(fact) else fact
    if fields["heads"] % fields["kv_heads"]:
        raise keys.error(f"{fields['heads']} attention heads cannot share {fields['kv_heads']} key-value heads")
    if fields["head_dim"] < 1:
        raise keys.error(f"{fields['dim']} elements are too few for {fields['heads']} heads")
    keys.activation("hidden_act", fields["activation"])
    layers = _layers(keys, family, fields.pop("depth"))
    if fields.get("experts"):
        fields["experts"] = ExpertsConfig(**fields["experts"])
    ropes = {layer.rope for layer in layers if layer.rope}
    trained = min([fields["context"], *(r.original for r in ropes if r.kind in ("dynamic", "longrope"))])
    for rope in (r for r in ropes if r.kind in ("dynamic", "yarn")):
        fields["context"] = max(fields["context"], int(rope.factor * rope.original))
    bos, eos = _special_tokens(folder, keys.values)
    return DecoderConfig(layers=layers, trained=trained, bos=bos, eos=eos, **fields)


def _layers(keys: ConfigKeys, family: DecoderFamily, count: int) -> tuple[LayerConfig, ...]:
    types = keys.get("layer_types") or family.layer_types(keys, count)
    if len(types) != count:
        raise keys.error(f"{len(types)} layer_types for {count} layers")
    window = keys.get("sliding_window")
    if SLIDING in types and not isinstance(window, int):
        raise keys.error(f"invalid sliding_window {window!r}: expected an integer, because layers use it")
    rotary = family.rotary_layers(keys, types)
    ropes = {
        layer_type: _rope(keys, family, layer_type) for layer_type in {t: None for t, r in zip(types, rotary) if r}
    }
    rows = zip(types, rotary, family.expert_layers(keys, count))
    return tuple(LayerConfig(ropes[t] if r else None, window if t == SLIDING else None, s) for t, r, s in rows)


def _rope(keys: ConfigKeys, family: DecoderFamily, layer_type: str) -> Rope:
    """Read `rope_parameters` of newer files, perhaps by type of layer, or `rope_theta` and `rope_scaling` of older."""
    values = family.rope(keys, layer_type)
    newer = keys.get("rope_parameters", {})
    values |= (newer.get(layer_type) or {}) if any(isinstance(v, dict) for v in newer.values()) else newer
    values |= {} if family.unscaled_windows and layer_type == SLIDING else keys.get("rope_scaling", {})

    def number(key: str, default: float = 0.0) -> float:
        value = values.get(key)
        return keys.positive(key, default if value is None else value)

    rope_type = str(values.get("rope_type") or values.get("type") or "default")
    kind = family.rope_aliases.get(rope_type, rope_type)
    if kind not in ROPES:
        raise keys.error(f"rope_type {rope_type!r} is not supported; supported are {', '.join(ROPES)}")
    share = number("partial_rotary_factor", 1.0)
    if share != 1.0 and not family.partial_rotary:
        raise keys.error(f"a partial_rotary_factor is not supported for {keys['family']}")
    dim, theta, positions = int(keys["head_dim"] * share), number("rope_theta"), keys["context"]
    if dim % 2 or not dim:
        raise keys.error(f"{dim} elements of a head cannot be rotated in pairs")
    original = 8192
    if kind == "dynamic":
        original = positions
    elif kind in ("llama3", "yarn", "longrope"):
        original = max(1, int(keys.positive(ORIGINAL, keys.get(ORIGINAL, number(ORIGINAL, positions)))))
    factor = number("factor", positions / original if kind in ("yarn", "longrope") else 1.0)
    if kind in ("dynamic", "yarn") and (dim <= 2 or theta <= 1 or factor < 1):
        raise keys.error(f"rope_type {rope_type!r} needs a factor and a rope_theta above 1, and more than 2 elements")
    low, high = ("beta_slow", 1.0), ("beta_fast", 32.0)
    if kind != "yarn":
        low, high = ("low_freq_factor", 1.0), ("high_freq_factor", 4.0)
    scale = _rope_scale(values, kind, factor, original)
    short, long = (
        _rope_factors(keys, values, key, dim) if kind == "longrope" else () for key in ("short_factor", "long_factor")
    )
    truncate = bool(values.get("truncate", True))
    return Rope(dim, theta, kind, factor, number(*low), number(*high), original, scale, short, long, truncate)


def _rope_scale(values: Mapping[str, Any], kind: str, factor: float, original: int) -> float:
    """Return the factor of cosines and sines, which keeps attention as sharp over longer texts."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))
    mscale, all_dims = values.get("mscale"), values.get("mscale_all_dim")
    if mscale and all_dims:
        return float((0.1 * mscale * math.log(factor) + 1) / (0.1 * all_dims * math.log(factor) + 1))
    return 0.1 * math.log(factor) + 1


def _rope_factors(keys: ConfigKeys, values: Mapping[str, Any], key: str, dim: int) -> tuple[float, ...]:
    factors = values.get(key) or []
    if len(factors) != dim // 2:
        raise keys.error(f"{key} has {len(factors)} numbers; expected {dim // 2}")
    return tuple(keys.positive(key, value) for value in factors)


def _special_tokens(folder: Path, values: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    """Return bos, or -1, and all tokens that end a text; `generation_config.json` takes precedence."""
    merged = {**values, **read_optional(folder / "generation_config.json")}
    bos, eos = merged.get("bos_token_id"), merged.get("eos_token_id")
    ends = eos if isinstance(eos, list) else [eos]
    return bos if isinstance(bos, int) else -1, tuple(dict.fromkeys(e for e in ends if isinstance(e, int)))
