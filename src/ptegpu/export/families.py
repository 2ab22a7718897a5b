"""The families of decoders: a table with one row for each, and nothing else knows a family by its name.

The terms are those of `family`: a `Family` names its facts, and what its checkpoints call the decoder's modules.
"""

from __future__ import annotations

import math
from typing import Any

from .family import (
    FULL,
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_LAYERS,
    SLIDING,
    Family,
    every_layer,
    fused,
    last_of,
    rotary,
    windows,
)
from .keys import Keys


def _some_windows(keys: Keys, count: int) -> list[str]:
    """Qwen: the later layers, if any."""
    on = keys.flag("use_sliding_window") and keys.get("sliding_window")
    first = keys.get("max_window_layers", 28)
    return [SLIDING if on and layer >= first else FULL for layer in range(count)]


def _smollm3_turned(keys: Keys, kinds: list[str]) -> list[bool]:
    every = keys.count("no_rope_layer_interval", 4)
    given = keys.get("no_rope_layers") or [(layer + 1) % every != 0 for layer in range(len(kinds))]
    if len(given) != len(kinds):
        raise keys.error(f"{len(given)} no_rope_layers for {len(kinds)} layers")
    return [bool(turned) for turned in given]


def _smollm3_kinds(keys: Keys, count: int) -> list[str]:
    on = keys.flag("use_sliding_window") and keys.get("sliding_window")
    turned = _smollm3_turned(keys, [FULL] * count)
    return [SLIDING if on and not turns else FULL for turns in turned]


def _qwen_sparse(keys: Keys, count: int) -> list[bool]:
    plain, every = keys.get("mlp_only_layers", []), keys.count("decoder_sparse_step", 1)
    return [layer not in plain and (layer + 1) % every == 0 for layer in range(count)]


def _experts(keys: Keys, key: str, hidden: str, normalised: bool, shared: int = 0) -> dict[str, Any]:
    count = keys.count(key, most=MOST_EXPERTS)
    chosen = keys.count("num_experts_per_tok", most=count)
    wide = keys.count(hidden)
    return {"count": count, "chosen": chosen, "hidden": wide, "normalised": normalised, "shared": shared}


def _qwen_experts(keys: Keys, shared: bool = False) -> dict[str, Any]:
    wide = keys.count("shared_expert_intermediate_size") if shared else 0
    key = "num_experts" if "num_experts" in keys.given else "num_local_experts"
    return _experts(keys, key, "moe_intermediate_size", keys.flag("norm_topk_prob"), wide)


def _alternate_windows(keys: Keys, count: int) -> list[str]:
    on, first = keys.flag("use_sliding_window") and keys.get("sliding_window"), keys.get("max_window_layers", 28)
    return [SLIDING if on and layer % 2 == 0 and layer < first else FULL for layer in range(count)]


def _neox_rope(keys: Keys, kind: str) -> dict[str, Any]:
    return {
        "rope_theta": keys.get("rotary_emb_base", 1e4),
        "partial_rotary_factor": keys.get("rotary_pct", 0.25),
    }


def _gemma3_rope(keys: Keys, kind: str) -> dict[str, Any]:
    key, theta = ("rope_local_base_freq", 1e4) if kind == SLIDING else ("rope_theta", 1e6)
    return {"rope_theta": keys.get(key, theta)}


def _gemma_activation(keys: Keys) -> str:
    name = keys.get("hidden_activation") or keys.get("hidden_act") or "gelu_pytorch_tanh"
    return "gelu_pytorch_tanh" if name == "gelu" else str(name)  # the first releases said so and meant this


def _falcon_kv_heads(keys: Keys) -> int:
    new, multi_query = keys.flag("new_decoder_architecture"), keys.flag("multi_query", True)
    return keys.count("num_kv_heads", keys["heads"]) if new else 1 if multi_query else int(keys["heads"])


def _falcon_parallel(keys: Keys) -> bool:
    return keys.flag("new_decoder_architecture") or keys.flag("parallel_attn", True)


def _falcon_shared_norm(keys: Keys) -> bool:
    new = keys.flag("new_decoder_architecture")
    return _falcon_parallel(keys) and not (new and keys.get("num_ln_in_parallel_attn", 2) == 2)


LAYER_NORM: dict[str, Any] = {"norm": "layer", "eps": lambda c: c.number("layer_norm_eps", 1e-5)}
GEMMA: dict[str, Any] = {
    "head_dim": lambda c: c.count("head_dim", 256),
    "tied": lambda c: c.flag("tie_word_embeddings", True),
    "activation": _gemma_activation,
    "norm_offset": 1.0,
    "embedding_scale": lambda c: math.sqrt(c["dim"]),
}
SANDWICH = GEMMA | {
    "norms": "both",
    "attention_scale": lambda c: c.number("query_pre_attn_scalar", 256) ** -0.5,
    "attention_cap": lambda c: c.cap("attn_logit_softcapping"),
    "logit_cap": lambda c: c.cap("final_logit_softcapping"),
}
COHERE = LAYER_NORM | {
    "norm_bias": False,
    "parallel": True,
    "shared_norm": True,
    "interleaved": True,
    "logit_scale": lambda c: c.number("logit_scale", 0.0625),
    "tied": lambda c: c.flag("tie_word_embeddings", True),
}

SANDWICH_NAMES = {
    "mlp_norm": "pre_feedforward_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


QWEN_EXPERTS = {f"mlp.expert_{each}": f"mlp.experts.*.{each}_proj" for each in ("gate", "up", "down")}


GPT2_REFUSED = ("scale_attn_by_inverse_layer_idx", "add_cross_attention")

FAMILIES: dict[str, Family] = {
    "llama": Family("Llama, SmolLM, and others in their shape"),
    "mistral": Family("Mistral", kinds=windows),
    "qwen2": Family("Qwen 2, 2.5", {"qkv_bias": True}, kinds=_some_windows),
    "qwen3": Family("Qwen 3", {"qk_norm": "head"}, kinds=_some_windows),
    "gemma": Family("Gemma", GEMMA),
    "gemma2": Family(
        "Gemma 2",
        SANDWICH
        | {
            "attention_cap": lambda c: c.cap("attn_logit_softcapping", 50.0),
            "logit_cap": lambda c: c.cap("final_logit_softcapping", 30.0),
        },
        SANDWICH_NAMES,
        kinds=last_of("", 2),
    ),
    "gemma3_text": Family(
        "Gemma 3, text",
        SANDWICH | {"qk_norm": "head"},
        SANDWICH_NAMES,
        kinds=last_of("sliding_window_pattern", 6),
        rope=_gemma3_rope,
        local=True,
    ),
    "qwen2_moe": Family(
        "Qwen 1.5 and 2 MoE",
        {"qkv_bias": lambda c: c.flag("qkv_bias", True), "experts": lambda c: _qwen_experts(c, shared=True)},
        QWEN_EXPERTS,
        kinds=_alternate_windows,
        sparse=_qwen_sparse,
    ),
    "qwen3_moe": Family(
        "Qwen 3 MoE",
        {"qk_norm": "head", "experts": _qwen_experts},
        QWEN_EXPERTS,
        kinds=lambda keys, count: [SLIDING if keys.flag("use_sliding_window") else FULL] * count,
        sparse=_qwen_sparse,
    ),
    "mixtral": Family(
        "Mixtral",
        {
            "eps": lambda c: c.number("rms_norm_eps", 1e-5),
            "experts": lambda c: _experts(c, "num_local_experts", "intermediate_size", normalised=True),
        },
        {
            "mlp.gate": "block_sparse_moe.gate",
            "mlp.expert_gate": "block_sparse_moe.experts.*.w1",
            "mlp.expert_up": "block_sparse_moe.experts.*.w3",
            "mlp.expert_down": "block_sparse_moe.experts.*.w2",
        },
        kinds=windows,
        sparse=every_layer,
        rope=rotary(1e6),
    ),
    "phi": Family(
        "Phi 1, 1.5, 2",
        LAYER_NORM
        | dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "head_bias", "parallel", "shared_norm"), True)
        | {"gated": False, "activation": lambda c: c.get("hidden_act", "gelu_new")},
        {
            "norm": "final_layernorm",
            "self_attn.o_proj": "self_attn.dense",
            "mlp.up_proj": "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        },
        rope=rotary(share=0.5),
        partial=True,
        refused=lambda c: "qk_layernorm" if c.flag("qk_layernorm") else None,
    ),
    "phi3": Family(
        "Phi 3, 3.5, 4",
        {"eps": lambda c: c.number("rms_norm_eps", 1e-5), "qkv_bias": False, "output_bias": False},
        fused("self_attn.qkv_proj") | {"mlp.gate_proj": "mlp.gate_up_proj", "mlp.up_proj": "mlp.gate_up_proj"},
        kinds=windows,
        partial=True,
        ropes={"su": "longrope", "yarn": "longrope"},
    ),
    "granite": Family(
        "Granite 3",
        {
            "embedding_scale": lambda c: c.number("embedding_multiplier", 1.0),
            "attention_scale": lambda c: c.number("attention_multiplier", 1.0),
            "residual_scale": lambda c: c.number("residual_multiplier", 1.0),
            "logit_scale": lambda c: 1 / c.number("logits_scaling", 1.0),
        },
    ),
    "starcoder2": Family(
        "StarCoder 2",
        {
            "norm": "layer",
            "eps": lambda c: c.number("norm_epsilon", 1e-5),
            "gated": False,
            "activation": lambda c: c.get("hidden_act", "gelu_pytorch_tanh"),
            "tied": lambda c: c.flag("tie_word_embeddings", True),
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), lambda c: c.flag("use_bias", True)),
        },
        {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
        kinds=windows,
    ),
    "gpt_neox": Family(
        "GPT-NeoX, Pythia",
        LAYER_NORM
        | {
            "kv_heads": lambda c: c["heads"],
            "head_dim": lambda c: c["dim"] // c["heads"],
            "gated": False,
            "activation": lambda c: c.get("hidden_act", "gelu"),
            "mlp_bias": True,
            "parallel": lambda c: c.flag("use_parallel_residual", True),
            **dict.fromkeys(("qkv_bias", "output_bias"), lambda c: c.flag("attention_bias", True)),
        },
        fused("attention.query_key_value")
        | {
            "embed_tokens": "embed_in",
            "norm": "final_layer_norm",
            "lm_head": ("embed_out", "lm_head"),
            "self_attn.o_proj": "attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        fused="groups",
        rope=_neox_rope,
        partial=True,
    ),
    "falcon": Family(
        "Falcon",
        {
            "norm": "layer",
            "eps": lambda c: c.number("layer_norm_epsilon", 1e-5),
            "kv_heads": _falcon_kv_heads,
            "head_dim": lambda c: c["dim"] // c["heads"],
            "hidden": lambda c: c.count("ffn_hidden_size", 4 * c["dim"]),
            "gated": False,
            "activation": lambda c: c.get("activation", "gelu"),
            "tied": lambda c: c.flag("tie_word_embeddings", True),
            "parallel": _falcon_parallel,
            "shared_norm": _falcon_shared_norm,
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), lambda c: c.flag("bias")),
        },
        fused("self_attention.query_key_value")
        | {
            "embed_tokens": "word_embeddings",
            "layers": "h",
            "norm": "ln_f",
            "attention_norm": ("ln_attn", "input_layernorm"),
            "mlp_norm": ("ln_mlp", "post_attention_layernorm"),
            "self_attn.o_proj": "self_attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        fused="groups",
        refused=lambda c: "alibi" if c.flag("alibi") else None,
    ),
    "olmo2": Family(
        "OLMo 2",
        {"eps": lambda c: c.number("rms_norm_eps", 1e-5), "norms": "after", "qk_norm": "row"},
        SANDWICH_NAMES,
    ),
    "olmo3": Family(
        "OLMo 3",
        {"eps": lambda c: c.number("rms_norm_eps", 1e-5), "norms": "after", "qk_norm": "row"},
        SANDWICH_NAMES,
        kinds=last_of("", 4),
        rope=rotary(5e5),
        local=True,
    ),
    "smollm3": Family(
        "SmolLM 3",
        {"tied": lambda c: c.flag("tie_word_embeddings", True)},
        kinds=_smollm3_kinds,
        turned=_smollm3_turned,
        rope=rotary(2e6),
    ),
    "stablelm": Family(
        "StableLM",
        LAYER_NORM
        | {
            "qkv_bias": lambda c: c.flag("use_qkv_bias"),
            "output_bias": False,
            "mlp_bias": False,
            "qk_norm": lambda c: "heads" if c.flag("qk_layernorm") else None,
            **dict.fromkeys(("parallel", "shared_norm"), lambda c: c.flag("use_parallel_residual")),
        },
        {
            "self_attn.q_norm": "self_attn.q_layernorm.norms.*",
            "self_attn.k_norm": "self_attn.k_layernorm.norms.*",
        },
        rope=rotary(share=0.25),
        partial=True,
    ),
    "gpt2": Family(
        "GPT-2",
        {
            "dim": lambda c: c.count("n_embd"),
            "heads": lambda c: c.count("n_head", most=MOST_HEADS),
            "kv_heads": lambda c: c["heads"],
            "head_dim": lambda c: c["dim"] // c["heads"],
            "hidden": lambda c: c.count("n_inner", 4 * c["dim"]),
            "depth": lambda c: c.count("n_layer", most=MOST_LAYERS),
            "context": lambda c: c.count("n_positions", 1024),
            "norm": "layer",
            "eps": lambda c: c.number("layer_norm_epsilon", 1e-5),
            "gated": False,
            "activation": lambda c: c.get("activation_function", "gelu_new"),
            "tied": lambda c: c.flag("tie_word_embeddings", True),
            "attention_scale": lambda c: None if c.flag("scale_attn_weights", True) else 1.0,
            **dict.fromkeys(("learned_positions", "qkv_bias", "output_bias", "mlp_bias"), True),
        },
        fused("attn.c_attn")
        | {
            "embed_tokens": "wte",
            "embed_positions": "wpe",
            "layers": "h",
            "norm": "ln_f",
            "attention_norm": "ln_1",
            "mlp_norm": "ln_2",
            "self_attn.o_proj": "attn.c_proj",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        },
        transposed=True,
        turned=lambda keys, kinds: [False] * len(kinds),
        refused=lambda c: next((k for k in GPT2_REFUSED if c.flag(k)), None),
    ),
    "cohere": Family(
        "Cohere Command-R",
        COHERE | {"qk_norm": lambda c: "heads" if c.flag("use_qk_norm") else None},
        rope=rotary(5e5),
    ),
    "cohere2": Family(
        "Cohere Command-R7B, A",
        COHERE,
        kinds=last_of("sliding_window_pattern", 4),
        turned=lambda keys, kinds: [kind == SLIDING for kind in kinds],
    ),
}
