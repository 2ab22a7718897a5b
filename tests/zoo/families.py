"""Tiny configs of every family that `ptegpu export llm` takes, and of the variants within families.

`FAMILIES` maps a name to the `config.json` of a model of transformers. `write` makes that model with random weights and
saves it as a checkpoint folder.
"""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .specimen import Specimen

VOCAB = 96
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
FALCON = {"model_type": "falcon", "num_kv_heads": 2, "ffn_hidden_size": 48}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 3.0, 6.0],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e2,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
SANDWICH = {"query_pre_attn_scalar": 24, "sliding_window": 5, "head_dim": 24}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "llama-linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
    },
    "llama-dynamic": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    },
    "mistral": {"model_type": "mistral", "sliding_window": 5},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-yarn": {"model_type": "qwen2", "rope_parameters": YARN},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "rope_theta": 1e6},
    "gemma": {"model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "gemma2": {
        "model_type": "gemma2",
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
        **SANDWICH,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "tie_word_embeddings": True,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
        **SANDWICH,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
        "head_dim": 16,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "phi": {"model_type": "phi"},
    "phi3": {"model_type": "phi3", "sliding_window": 7},
    "phi4-longrope": {
        "model_type": "phi3",
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 48,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75, **LONG},
    },
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.5,
    },
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 6, "tie_word_embeddings": True},
    "pythia": {"model_type": "gpt_neox", "rotary_pct": 0.5},
    "gpt_neox-in-turn": {"model_type": "gpt_neox", "use_parallel_residual": False},
    "falcon-multi-query": {**FALCON, "tie_word_embeddings": True},
    "falcon-many-heads": {**FALCON, "multi_query": False, "num_kv_heads": 4, "bias": True},
    "falcon-in-turn": {**FALCON, "parallel_attn": False, "bias": True},
    "falcon-new": {**FALCON, "new_decoder_architecture": True},
    "falcon-new-one-norm": {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0], "tie_word_embeddings": True},
    "stablelm": {"model_type": "stablelm", "qk_layernorm": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "stablelm-parallel": {"model_type": "stablelm", "use_parallel_residual": True},
    "gpt2": {**GPT2, "tie_word_embeddings": True},
    "gpt2-untied": {**GPT2, "n_inner": 48, "scale_attn_weights": False, "tie_word_embeddings": False},
    "cohere": {"model_type": "cohere", "use_qk_norm": True, "logit_scale": 0.3, "tie_word_embeddings": True},
    "cohere2": {
        "model_type": "cohere2",
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
}


def config(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings of `config.json` that transformers needs."""
    family = FAMILIES[name]
    own = family["model_type"] == "gpt2"
    common = {k: v for k, v in LLAMA.items() if not own or k not in NOT_GPT2}
    return common | family | (changes or {})


NOT_GPT2 = {k for k in LLAMA if k.startswith(("hidden", "interm", "num_", "max_pos"))}


def model(name: str, changes: dict[str, Any] | None = None) -> Any:
    """Return the model of transformers, with weights so large that every part of it matters."""
    import transformers

    settings = config(name, changes)
    config_object = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    network = transformers.AutoModelForCausalLM.from_config(config_object, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1 or "norm" in key:
                values = values * 0.2 + float(parameter.float().mean() > 0.5)  # norms begin with 1, biases with 0
            elif "emb" not in key and "wte" not in key:
                values *= 1.5 / parameter.shape[-1] ** 0.5
            parameter.copy_(values)
    return network


def write(folder: Path, name: str, changes: dict[str, Any] | None = None, **options: Any) -> Any:
    """Save the model as a checkpoint and return it; pass `options` to `save_pretrained`."""
    from transformers.utils import logging

    network = model(name, changes)
    logging.disable_progress_bar()
    network.save_pretrained(folder, **options)
    return network


SPECIMENS = {
    name: Specimen(partial(model, name), lambda: (torch.arange(12)[None],), partial(write, name=name))
    for name in FAMILIES
}
