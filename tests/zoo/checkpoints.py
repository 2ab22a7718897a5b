"""Tiny random checkpoints of some families, as Hugging Face writes them, from a seed and without transformers."""

from __future__ import annotations

import json
import math
import tempfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from .specimen import Specimen

VOCAB, DIM, HIDDEN, LAYERS = 96, 64, 128, 2
TOKENS = [5, 17, 3, 88, 41, 41, 2, 60, 9, 33, 71, 12]

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
SANDWICH = {"query_pre_attn_scalar": 24, "sliding_window": 5, "head_dim": 24}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 500.0, "rope_scaling": LLAMA3, "tie_word_embeddings": True},
    "llama-biases": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 8,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        "tie_word_embeddings": False,
    },
    "mistral": {"model_type": "mistral", "sliding_window": 5, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen2-window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 1,
        "tie_word_embeddings": False,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "rope_theta": 1e6, "tie_word_embeddings": False},
    "gemma": {"model_type": "gemma", "head_dim": 32, "hidden_act": "gelu", "num_key_value_heads": 1},
    "gemma2": {
        "model_type": "gemma2",
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        **SANDWICH,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window_pattern": 2,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        **SANDWICH,
    },
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


def config(name: str) -> dict[str, Any]:
    result = COMMON | CONFIGS[name]
    return result | {"architectures": [ARCHITECTURES[result["model_type"]]]}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights by name."""
    family, dim, hidden = config["model_type"], config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or dim // config["num_attention_heads"]
    wide, narrow = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    bias = config.get("attention_bias", False)
    by_name: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, dim),
        "model.norm.weight": (dim,),
    }
    if not config.get("tie_word_embeddings", family.startswith("gemma")):
        by_name["lm_head.weight"] = (VOCAB, dim)
    for layer in range(config["num_hidden_layers"]):
        linears = [("self_attn.q_proj", wide, dim, bias or family == "qwen2")]
        linears += [(f"self_attn.{p}_proj", narrow, dim, bias or family == "qwen2") for p in "kv"]
        linears += [("self_attn.o_proj", dim, wide, bias)]
        linears += [(f"mlp.{p}_proj", hidden, dim, config.get("mlp_bias", False)) for p in ("gate", "up")]
        linears += [("mlp.down_proj", dim, hidden, config.get("mlp_bias", False))]
        prefix = f"model.layers.{layer}."
        for name, n, k, biased in linears:
            by_name[f"{prefix}{name}.weight"] = n, k
            if biased:
                by_name[f"{prefix}{name}.bias"] = (n,)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family in ("gemma2", "gemma3_text"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        by_name |= {f"{prefix}{norm}.weight": (dim,) for norm in norms}
        if family in ("qwen3", "gemma3_text"):
            by_name |= {f"{prefix}self_attn.{p}_norm.weight": (head,) for p in "qk"}
    return by_name


def tensors(name: str, changes: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    settings = config(name) | (changes or {})
    random = np.random.default_rng(zlib.crc32(name.encode()))
    weights = {}
    for key, shape in shapes(settings).items():
        values = random.standard_normal(shape).astype(np.float32)
        if key.endswith("norm.weight"):
            values = values * 0.2 + (0.0 if settings["model_type"].startswith("gemma") else 1.0)
        elif key.endswith(".bias"):
            values *= 0.2
        elif "embed_tokens" not in key or settings.get("tie_word_embeddings", True):
            values *= 1.5 / math.sqrt(shape[1])
        weights[key] = torch.from_numpy(values)
    return weights


def write(folder: Path, name: str, changes: dict[str, Any] | None = None, *, shards: int = 1) -> Path:
    """Write a checkpoint folder; `changes` replace keys of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(name) | (changes or {})))
    weights = tensors(name, changes)
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    places = {key: f"model-{k % shards}.safetensors" for k, key in enumerate(weights)}
    for file in set(places.values()):
        save_file({key: weights[key] for key in weights if places[key] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def by_transformers(folder: Path) -> np.ndarray:
    """Return the logits of every token of `TOKENS`, (S, V), in float32."""
    with torch.no_grad():
        return np.asarray(loaded(folder)(torch.tensor([TOKENS])).logits[0].numpy())


def loaded(folder: Path) -> Any:
    """Load a folder with transformers."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def build(name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return loaded(write(Path(folder), name))


SPECIMENS = {
    name: Specimen(partial(build, name), lambda: (torch.tensor([TOKENS]),), partial(write, name=name))
    for name in CONFIGS
}
