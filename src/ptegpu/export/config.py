"""`config.json` of a Hugging Face checkpoint to a `Config`: what a decoder of any supported family is made of.

A family's own reading of its keys, and the values it has where the file is silent, are here and nowhere else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ExportError, PtegpuError
from ..files import read_object

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
ROPES = ("default", "linear", "llama3")
SLIDING = "sliding_attention"
LARGEST = (1 << 31) - 1  # of sizes
MOST_LAYERS = 4096
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies: angle = position · frequency."""

    dim: int  # of a head
    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency: float = 1.0  # llama3: waves longer than original / low_frequency are stretched by `factor`,
    high_frequency: float = 4.0  # those shorter than original / high_frequency are not
    original: int = 8192  # positions in training

    def frequencies(self) -> torch.Tensor:
        """(dim / 2), in float32 as the models were trained with."""
        plain = 1.0 / (self.theta ** (torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim))
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            waves = self.original * plain / (2 * math.pi)  # in the positions of training
            share = ((waves - self.low_frequency) / (self.high_frequency - self.low_frequency)).clamp(0, 1)
            return (1 - share) * plain / self.factor + share * plain
        return plain


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from layer to layer."""

    rope: Rope
    window: int | None = None  # a token sees so many, itself included; None: all before it


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
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False  # queries and keys are normalised, head by head
    outer_norms: bool = False  # what attention and feed-forward give is normalised too
    norm_offset: float = 0.0  # added to the norms' weights
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # None: 1 / √head_dim
    attention_cap: float | None = None  # scores s become cap · tanh(s / cap)
    logit_cap: float | None = None
    bos: int = -1  # -1: none
    eos: tuple[int, ...] = ()


def read_config(folder: Path) -> Config:
    """The folder's `config.json` and, for the special tokens, `generation_config.json`."""
    if not folder.is_dir():
        raise _no_folder(folder.as_posix())
    path = folder / "config.json"
    try:
        return _config(folder, path, _read_json(path))
    except PtegpuError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as e:  # values of another kind
        raise ExportError(f"{path} cannot be understood: {e}") from None


def _config(folder: Path, path: Path, given: Mapping[str, Any]) -> Config:
    family = given.get("model_type")
    if family not in FAMILIES:
        raise ExportError(f"{path}: model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}")
    if given.get("use_bidirectional_attention"):
        raise ExportError(f"{path}: use_bidirectional_attention is not supported: text is made from left to right")
    if given.get("quantization_config"):
        raise ExportError(f"{path}: the weights are quantized already; export the original checkpoint")
    reader = _Reader(path, given)
    gemma = family.startswith("gemma")
    dim, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    kv_heads = reader.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ExportError(f"{path}: {heads} attention heads cannot share {kv_heads} key-value heads")
    head_dim = reader.count("head_dim", 256 if gemma else dim // heads)
    activation = _activation(path, given, gemma)
    bias = bool(given.get("attention_bias", False))
    later_gemma = family in ("gemma2", "gemma3_text")
    bos, eos = _special_tokens(folder, given)
    return Config(
        family=family,
        vocab=reader.count("vocab_size"),
        dim=dim,
        hidden=reader.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        layers=_layers(path, given, reader.count("num_hidden_layers", most=MOST_LAYERS), family, head_dim),
        eps=reader.number("rms_norm_eps", 1e-6),
        activation=activation,
        tied=bool(given.get("tie_word_embeddings", gemma)),
        context=reader.count("max_position_embeddings", 2048),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=bool(given.get("mlp_bias", False)),
        head_norms=family in ("qwen3", "gemma3_text"),
        outer_norms=later_gemma,
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=math.sqrt(dim) if gemma else 1.0,
        attention_scale=reader.number("query_pre_attn_scalar", 256) ** -0.5 if later_gemma else None,
        attention_cap=reader.cap("attn_logit_softcapping", 50.0 if family == "gemma2" else None),
        logit_cap=reader.cap("final_logit_softcapping", 30.0 if family == "gemma2" else None),
        bos=bos,
        eos=eos,
    )


def _no_folder(name: str) -> ExportError:
    if not HUB_ID.fullmatch(name):
        return ExportError(f"there is no folder {name}")
    local = name.rpartition("/")[2]
    return ExportError(
        f"there is no folder {name}. If this is a model of the Hugging Face Hub, download it and give the folder "
        f"{local} instead:",
        f"  hf download {name} --local-dir {local}",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, ExportError)
    except FileNotFoundError:
        raise ExportError(f"{path} is missing: this is no folder of a Hugging Face checkpoint") from None


class _Reader:
    """Numbers from a config, each positive and finite."""

    def __init__(self, path: Path, given: Mapping[str, Any]) -> None:
        self.path, self.given = path, given

    def count(self, key: str, default: int | None = None, most: int = LARGEST) -> int:
        value = self.given.get(key)
        value = default if value is None else value
        if value is None:
            raise ExportError(f"{self.path}: {key} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ExportError(f"{self.path}: {key} is {value!r}, not a positive number up to {most:,}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.given.get(key)
        return _number(self.path, key, default if value is None else value)

    def cap(self, key: str, default: float | None) -> float | None:
        value = self.given.get(key, default)
        return None if value is None else _number(self.path, key, value)


def _number(path: Path, key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ExportError(f"{path}: {key} is {value!r}, not a positive number")
    return float(value)


def _activation(path: Path, given: Mapping[str, Any], gemma: bool) -> str:
    name = given.get("hidden_activation") or given.get("hidden_act") or ("gelu_pytorch_tanh" if gemma else "silu")
    if gemma and name == "gelu":  # the first releases said so and meant the approximation
        return "gelu_pytorch_tanh"
    if name not in ACTIVATIONS:
        raise ExportError(f"{path}: hidden_act {name!r} is not supported; supported are {', '.join(ACTIVATIONS)}")
    return str(name)


def _layers(path: Path, given: Mapping[str, Any], count: int, family: str, head_dim: int) -> tuple[Layer, ...]:
    kinds = given.get("layer_types") or _layer_types(given, count, family)
    if len(kinds) != count:
        raise ExportError(f"{path}: {len(kinds)} layer_types for {count} layers")
    window = given.get("sliding_window")
    if SLIDING in kinds and not isinstance(window, int):
        raise ExportError(f"{path}: sliding_window is {window!r}, and layers need it")
    ropes = {kind: _rope(path, given, kind, family, head_dim) for kind in dict.fromkeys(kinds)}
    return tuple(Layer(ropes[kind], window if kind == SLIDING else None) for kind in kinds)


def _layer_types(given: Mapping[str, Any], count: int, family: str) -> Sequence[str]:
    """For files older than the key `layer_types`."""
    if family in ("gemma2", "gemma3_text"):
        every = 2 if family == "gemma2" else given.get("sliding_window_pattern", 6)
        first_full = every - 1
        return ["full_attention" if layer % every == first_full else SLIDING for layer in range(count)]
    if family in ("qwen2", "qwen3") and given.get("use_sliding_window") and given.get("sliding_window"):
        first = given.get("max_window_layers", 28)
        return [SLIDING if layer >= first else "full_attention" for layer in range(count)]
    return [SLIDING if family == "mistral" and given.get("sliding_window") else "full_attention"] * count


def _rope(path: Path, given: Mapping[str, Any], kind: str, family: str, head_dim: int) -> Rope:
    """Newer files have `rope_parameters`, maybe one for each kind of layer; older ones `rope_theta`, `rope_scaling`."""
    local = family == "gemma3_text" and kind == SLIDING
    theta = given.get("rope_local_base_freq", 1e4) if local else given.get("rope_theta")
    found = {"rope_theta": theta or (1e6 if family == "gemma3_text" else 1e4)}
    newer = given.get("rope_parameters") or {}
    found |= (newer.get(kind) or {}) if any(isinstance(v, dict) for v in newer.values()) else newer
    found |= {} if local else given.get("rope_scaling") or {}

    def number(key: str, default: float = 0.0) -> float:
        return _number(path, key, found.get(key, default))

    rope = str(found.get("rope_type") or found.get("type") or "default")
    if rope not in ROPES:
        raise ExportError(f"{path}: rope_type {rope!r} is not supported; supported are {', '.join(ROPES)}")
    if found.get("partial_rotary_factor", given.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ExportError(f"{path}: a partial_rotary_factor is not supported for {family}")
    return Rope(
        head_dim,
        number("rope_theta"),
        rope,
        number("factor", 1.0),
        number("low_freq_factor", 1.0),
        number("high_freq_factor", 4.0),
        int(number("original_max_position_embeddings", 8192)),
    )


def _special_tokens(folder: Path, given: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    """bos, or -1, and all that end a text: what `generation_config.json` says goes before `config.json`."""
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.is_file() else {}
    bos = generation.get("bos_token_id", given.get("bos_token_id"))
    eos = generation.get("eos_token_id", given.get("eos_token_id"))
    ends = eos if isinstance(eos, list) else [eos]
    return bos if isinstance(bos, int) else -1, tuple(dict.fromkeys(e for e in ends if isinstance(e, int)))
