"""`config.json` of a Hugging Face checkpoint to a `Config`: what a decoder of any supported family is made of.

What a family has where the file is silent is in `families`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ExportError, PtegpuError
from ..files import check_checkpoint, read_object
from ..models.kinds import DECODERS, SEEING_TYPES, architecture
from .families import FAMILIES
from .family import LLAMA, SLIDING, Family
from .keys import Keys

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new")
ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies: angle = position · frequency. Waves are measured against the positions of training."""

    dim: int  # of a head, or as much of it as is turned
    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency: float = 1.0  # llama3, yarn: waves that turn less often in training are stretched by `factor`,
    high_frequency: float = 4.0  # those that turn more often are not
    original: int = 8192  # positions in training
    scale: float = 1.0  # of cosines and sines
    short: tuple[float, ...] = ()  # longrope: what waves are stretched by, within the positions of training
    long: tuple[float, ...] = ()  # and beyond
    whole: bool = True  # yarn: the waves between are counted in whole numbers

    def frequencies(self, context: int) -> torch.Tensor:
        """(dim / 2) for texts of up to `context` tokens, in float32 as the models were trained with."""
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
            low, high = self._between()
            share = ((torch.arange(self.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
            return share * plain / self.factor + (1 - share) * plain
        return plain

    def _between(self) -> tuple[float, float]:
        """Frequencies by number: up to the first they are not stretched, from the second on fully."""

        def number(turns: float) -> float:
            return self.dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = number(self.high_frequency), number(self.low_frequency)
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        return low, high + 1e-3 if low == high else high


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward parts of which each token takes a few, with the weights that a router gives them."""

    count: int
    chosen: int  # by each token
    hidden: int
    normalised: bool  # the weights of those chosen add up to 1
    shared: int = 0  # what every token takes besides: so wide, with a gate of its own; 0: nothing


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer."""

    rope: Rope | None  # None: positions are not told
    window: int | None = None  # a token sees so many, itself included; None: all before it
    sparse: bool = False  # experts, not one feed-forward part


@dataclass(frozen=True, slots=True)
class Config:
    family: str
    vocab: int
    dim: int
    hidden: int  # of the feed-forward part
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[Layer, ...]
    eps: float
    activation: str
    tied: bool  # the output layer is the embedding
    context: int  # positions the model was made for
    trained: int  # of them, those it needs no stretched waves for
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False  # of the output layer
    gated: bool = True  # feed-forward: down(act(gate(x)) · up(x)), not down(act(up(x)))
    norm: str = "rms"  # or "layer"
    norm_bias: bool = True  # of layer norms
    norm_offset: float = 0.0  # added to the norms' weights
    norms: str = "before"  # attention and feed-forward, "after" them, or "both"
    parallel: bool = False  # attention and feed-forward read the same
    shared_norm: bool = False  # and after the same norm
    qk_norm: str | None = None  # queries and keys: by "head", by "heads" with weights for each, or the whole "row"
    interleaved: bool = False  # neighbours turn together in the checkpoint; loaded, halves do
    learned_positions: bool = False  # a table that is added to the embedding
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None  # None: 1 / √head_dim
    attention_cap: float | None = None  # scores s become cap · tanh(s / cap)
    logit_scale: float = 1.0
    logit_cap: float | None = None
    experts: Experts | None = None  # of the layers that are sparse
    bos: int = -1  # -1: none
    eos: tuple[int, ...] = ()


def read_config(folder: Path) -> Config:
    """The folder's `config.json` and, for the special tokens, `generation_config.json`."""
    check_checkpoint(folder, ExportError)
    path = folder / "config.json"
    try:
        return _config(folder, Keys(path, text_config(read_object(path, ExportError))))
    except PtegpuError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as e:  # values of another kind
        raise ExportError(f"{path} cannot be understood: {e}") from None


def text_config(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the language model in one that sees; any other as it is."""
    if given.get("model_type") not in SEEING_TYPES:
        return given
    inner = given.get("text_config") or {}
    return {"model_type": "llama", **inner, "tie_word_embeddings": given.get("tie_word_embeddings", False)}


def _config(folder: Path, keys: Keys) -> Config:
    name = keys.get("model_type")
    if name not in FAMILIES:
        supported = f"supported are {', '.join((*FAMILIES, *SEEING_TYPES))}"
        other = (a := architecture(keys.given)) and not a.endswith(DECODERS)
        hint = ". `ptegpu export hf` exports models that generate no text" if other else ""
        raise keys.error(f"model_type {name!r} is not supported; {supported}{hint}")
    if keys.get("use_bidirectional_attention"):
        raise keys.error("use_bidirectional_attention is not supported: text is made from left to right")
    if keys.get("quantization_config"):
        raise keys.error("the weights are quantized already; export the original checkpoint")
    family = FAMILIES[name]
    keys.found["family"] = name
    if reason := family.refused(keys):
        raise keys.error(f"{reason} is not supported for {name}")
    for field, fact in (LLAMA | dict(family.facts)).items():
        keys.found[field] = fact(keys) if callable(fact) else fact
    fields = keys.found
    if fields["heads"] % fields["kv_heads"]:
        raise keys.error(f"{fields['heads']} attention heads cannot share {fields['kv_heads']} key-value heads")
    if fields["head_dim"] < 1:
        raise keys.error(f"{fields['dim']} elements are too few for {fields['heads']} heads")
    if fields["activation"] not in ACTIVATIONS:
        supported = f"supported are {', '.join(ACTIVATIONS)}"
        raise keys.error(f"hidden_act {fields['activation']!r} is not supported; {supported}")
    layers = _layers(keys, family, fields.pop("depth"))
    if fields.get("experts"):
        fields["experts"] = Experts(**fields["experts"])
    ropes = {layer.rope for layer in layers if layer.rope}
    trained = min([fields["context"], *(r.original for r in ropes if r.kind in ("dynamic", "longrope"))])
    for rope in (r for r in ropes if r.kind in ("dynamic", "yarn")):
        fields["context"] = max(fields["context"], int(rope.factor * rope.original))
    bos, eos = _special_tokens(folder, keys.given)
    return Config(layers=layers, trained=trained, bos=bos, eos=eos, **fields)


def _layers(keys: Keys, family: Family, count: int) -> tuple[Layer, ...]:
    kinds = keys.get("layer_types") or family.kinds(keys, count)
    if len(kinds) != count:
        raise keys.error(f"{len(kinds)} layer_types for {count} layers")
    window = keys.get("sliding_window")
    if SLIDING in kinds and not isinstance(window, int):
        raise keys.error(f"sliding_window is {window!r}, and layers need it")
    turned = family.turned(keys, kinds)
    ropes = {kind: _rope(keys, family, kind) for kind in {k: None for k, t in zip(kinds, turned) if t}}
    sparse = family.sparse(keys, count)
    each = zip(kinds, turned, sparse)
    return tuple(Layer(ropes[k] if t else None, window if k == SLIDING else None, s) for k, t, s in each)


def _rope(keys: Keys, family: Family, kind: str) -> Rope:
    """Newer files have `rope_parameters`, maybe one for each kind of layer; older ones `rope_theta`, `rope_scaling`."""
    found = family.rope(keys, kind)
    newer = keys.get("rope_parameters", {})
    found |= (newer.get(kind) or {}) if any(isinstance(v, dict) for v in newer.values()) else newer
    found |= {} if family.local and kind == SLIDING else keys.get("rope_scaling", {})

    def number(key: str, default: float = 0.0) -> float:
        value = found.get(key)
        return keys.positive(key, default if value is None else value)

    given = str(found.get("rope_type") or found.get("type") or "default")
    name = family.ropes.get(given, given)
    if name not in ROPES:
        raise keys.error(f"rope_type {given!r} is not supported; supported are {', '.join(ROPES)}")
    share = number("partial_rotary_factor", 1.0)
    if share != 1.0 and not family.partial:
        raise keys.error(f"a partial_rotary_factor is not supported for {keys['family']}")
    dim, theta, positions = int(keys["head_dim"] * share), number("rope_theta"), keys["context"]
    if dim % 2 or not dim:
        raise keys.error(f"{dim} elements of a head cannot be turned in pairs")
    original = 8192
    if name == "dynamic":
        original = positions
    elif name in ("llama3", "yarn", "longrope"):
        original = max(1, int(keys.positive(ORIGINAL, keys.get(ORIGINAL, number(ORIGINAL, positions)))))
    factor = number("factor", positions / original if name in ("yarn", "longrope") else 1.0)
    if name in ("dynamic", "yarn") and (dim <= 2 or theta <= 1 or factor < 1):
        raise keys.error(f"rope_type {given!r} needs a factor and a rope_theta above 1, and more than 2 elements")
    low, high = ("beta_slow", 1.0), ("beta_fast", 32.0)
    if name != "yarn":
        low, high = ("low_freq_factor", 1.0), ("high_freq_factor", 4.0)
    scale = _scale(found, name, factor, original)
    short, long = (_factors(keys, found, key, name, dim) for key in ("short_factor", "long_factor"))
    whole = bool(found.get("truncate", True))
    return Rope(dim, theta, name, factor, number(*low), number(*high), original, scale, short, long, whole)


def _scale(found: Mapping[str, Any], kind: str, factor: float, original: int) -> float:
    """Of cosines and sines, so that attention stays as sharp over longer texts."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    if found.get("attention_factor") is not None:
        return float(found["attention_factor"])
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original))
    one, all_dims = found.get("mscale"), found.get("mscale_all_dim")
    if one and all_dims:
        return float((0.1 * one * math.log(factor) + 1) / (0.1 * all_dims * math.log(factor) + 1))
    return 0.1 * math.log(factor) + 1


def _factors(keys: Keys, found: Mapping[str, Any], key: str, kind: str, dim: int) -> tuple[float, ...]:
    if kind != "longrope":
        return ()
    given = found.get(key) or []
    if len(given) != dim // 2:
        raise keys.error(f"{key} has {len(given)} numbers, and not {dim // 2}")
    return tuple(keys.positive(key, value) for value in given)


def _special_tokens(folder: Path, given: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    """bos, or -1, and all that end a text: what `generation_config.json` says goes before `config.json`."""
    path = folder / "generation_config.json"
    generation = read_object(path, ExportError) if path.is_file() else {}
    bos = generation.get("bos_token_id", given.get("bos_token_id"))
    eos = generation.get("eos_token_id", given.get("eos_token_id"))
    ends = eos if isinstance(eos, list) else [eos]
    return bos if isinstance(bos, int) else -1, tuple(dict.fromkeys(e for e in ends if isinstance(e, int)))
