"""The families of decoders, one row each; no other module knows a family by its name.

A row is a `DecoderFamily`: the family's facts, and what its checkpoints call the decoder's modules.
"""

from __future__ import annotations

import math
from typing import Any

from .config_keys import MOST_EXPERTS, MOST_HEADS, MOST_LAYERS, ConfigKeys
from .family import FULL, SLIDING, DecoderFamily, all_windows, fused_qkv, last_full, rotary


def _used_window(keys: ConfigKeys) -> Any:
    return keys.flag("use_sliding_window") and keys.get("sliding_window")


def _later_windows(keys: ConfigKeys, count: int) -> list[str]:
    window, first = _used_window(keys), keys.get("max_window_layers", 28)
    return [SLIDING if window and layer >= first else FULL for layer in range(count)]


def _alternate_windows(keys: ConfigKeys, count: int) -> list[str]:
    window, first = _used_window(keys), keys.get("max_window_layers", 28)
    return [SLIDING if window and layer % 2 == 0 and layer < first else FULL for layer in range(count)]


def _smollm3_rotary(keys: ConfigKeys, layer_types: list[str]) -> list[bool]:
    every, count = keys.count("no_rope_layer_interval", 4), len(layer_types)
    flags = keys.get("no_rope_layers") or [(layer + 1) % every != 0 for layer in range(count)]
    if len(flags) != count:
        raise keys.error(f"{len(flags)} no_rope_layers for {count} layers")
    return [bool(flag) for flag in flags]


def _smollm3_layer_types(keys: ConfigKeys, count: int) -> list[str]:
    window = _used_window(keys)
    return [SLIDING if window and not rotary else FULL for rotary in _smollm3_rotary(keys, [FULL] * count)]


def _qwen_expert_layers(keys: ConfigKeys, count: int) -> list[bool]:
    plain, every = keys.get("mlp_only_layers", []), keys.count("decoder_sparse_step", 1)
    return [layer not in plain and (layer + 1) % every == 0 for layer in range(count)]


def _experts(keys: ConfigKeys, key: str, hidden: str, normalised: bool, shared: int = 0) -> dict[str, Any]:
    count = keys.count(key, most=MOST_EXPERTS)
    chosen = keys.count("num_experts_per_tok", most=count)
    width = keys.count(hidden)
    return {"count": count, "chosen": chosen, "hidden": width, "normalised": normalised, "shared": shared}


def _qwen_experts(keys: ConfigKeys, shared: bool = False) -> dict[str, Any]:
    width = keys.count("shared_expert_intermediate_size") if shared else 0
    key = "num_experts" if "num_experts" in keys.values else "num_local_experts"
    return _experts(keys, key, "moe_intermediate_size", keys.flag("norm_topk_prob"), width)


def _gemma3_rope(keys: ConfigKeys, layer_type: str) -> dict[str, Any]:
    key, theta = ("rope_local_base_freq", 1e4) if layer_type == SLIDING else ("rope_theta", 1e6)
    return {"rope_theta": keys.get(key, theta)}


def _gemma_activation(keys: ConfigKeys) -> str:
    name = keys.get("hidden_activation") or keys.get("hidden_act") or "gelu_pytorch_tanh"
    return "gelu_pytorch_tanh" if name == "gelu" else str(name)  # the first releases wrote "gelu" and meant tanh


def _falcon_kv_heads(keys: ConfigKeys) -> int:
    new, multi_query = keys.flag("new_decoder_architecture"), keys.flag("multi_query", True)
    return keys.count("num_kv_heads", keys["heads"]) if new else 1 if multi_query else int(keys["heads"])


def _falcon_parallel(keys: ConfigKeys) -> bool:
    return keys.flag("new_decoder_architecture") or keys.flag("parallel_attn", True)


def _falcon_shared_norm(keys: ConfigKeys) -> bool:
    new = keys.flag("new_decoder_architecture")
    return _falcon_parallel(keys) and not (new and keys.get("num_ln_in_parallel_attn", 2) == 2)


TIED: dict[str, Any] = {"tied": lambda c: c.flag("tie_word_embeddings", True)}
RMS_5: dict[str, Any] = {"eps": lambda c: c.number("rms_norm_eps", 1e-5)}
LAYER_NORM: dict[str, Any] = {"norm": "layer", "eps": lambda c: c.number("layer_norm_eps", 1e-5)}
GEMMA: dict[str, Any] = {
    "head_dim": lambda c: c.count("head_dim", 256),
    **TIED,
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
    **TIED,
}

SANDWICH_NAMES = {
    "mlp_norm": "pre_feedforward_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
QWEN_EXPERTS = {f"mlp.expert_{part}": f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")}
GPT2_REFUSED = ("scale_attn_by_inverse_layer_idx", "add_cross_attention")

FAMILIES: dict[str, DecoderFamily] = {
    "llama": DecoderFamily("Llama, SmolLM, and others in their shape"),
    "mistral": DecoderFamily("Mistral", layer_types=all_windows),
    "qwen2": DecoderFamily("Qwen 2, 2.5", {"qkv_bias": True}, layer_types=_later_windows),
    "qwen3": DecoderFamily("Qwen 3", {"qk_norm": "head"}, layer_types=_later_windows),
    "gemma": DecoderFamily("Gemma", GEMMA),
    "gemma2": DecoderFamily(
        "Gemma 2",
        SANDWICH
        | {
            "attention_cap": lambda c: c.cap("attn_logit_softcapping", 50.0),
            "logit_cap": lambda c: c.cap("final_logit_softcapping", 30.0),
        },
        SANDWICH_NAMES,
        layer_types=last_full("", 2),
    ),
    "gemma3_text": DecoderFamily(
        "Gemma 3, text",
        SANDWICH | {"qk_norm": "head"},
        SANDWICH_NAMES,
        layer_types=last_full("sliding_window_pattern", 6),
        rope=_gemma3_rope,
        unscaled_windows=True,
    ),
    "qwen2_moe": DecoderFamily(
        "Qwen 1.5 and 2 MoE",
        {"qkv_bias": lambda c: c.flag("qkv_bias", True), "experts": lambda c: _qwen_experts(c, shared=True)},
        QWEN_EXPERTS,
        layer_types=_alternate_windows,
        expert_layers=_qwen_expert_layers,
    ),
    "qwen3_moe": DecoderFamily(
        "Qwen 3 MoE",
        {"qk_norm": "head", "experts": _qwen_experts},
        QWEN_EXPERTS,
        layer_types=lambda keys, count: [SLIDING if keys.flag("use_sliding_window") else FULL] * count,
        expert_layers=_qwen_expert_layers,
    ),
    "mixtral": DecoderFamily(
        "Mixtral",
        {
            **RMS_5,
            "experts": lambda c: _experts(c, "num_local_experts", "intermediate_size", normalised=True),
        },
        {
            "mlp.gate": "block_sparse_moe.gate",
            "mlp.expert_gate": "block_sparse_moe.experts.*.w1",
            "mlp.expert_up": "block_sparse_moe.experts.*.w3",
            "mlp.expert_down": "block_sparse_moe.experts.*.w2",
        },
        layer_types=all_windows,
        expert_layers=lambda keys, count: [True] * count,
        rope=rotary(1e6),
    ),
    "phi": DecoderFamily(
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
        partial_rotary=True,
        refused=lambda c: "qk_layernorm" if c.flag("qk_layernorm") else None,
    ),
    "phi3": DecoderFamily(
        "Phi 3, 3.5, 4",
        {**RMS_5, "qkv_bias": False, "output_bias": False},
        fused_qkv("self_attn.qkv_proj") | {"mlp.gate_proj": "mlp.gate_up_proj", "mlp.up_proj": "mlp.gate_up_proj"},
        layer_types=all_windows,
        partial_rotary=True,
        rope_aliases={"su": "longrope", "yarn": "longrope"},
    ),
    "granite": DecoderFamily(
        "Granite 3",
        {
            "embedding_scale": lambda c: c.number("embedding_multiplier", 1.0),
            "attention_scale": lambda c: c.number("attention_multiplier", 1.0),
            "residual_scale": lambda c: c.number("residual_multiplier", 1.0),
            "logit_scale": lambda c: 1 / c.number("logits_scaling", 1.0),
        },
    ),
    "starcoder2": DecoderFamily(
        "StarCoder 2",
        {
            "norm": "layer",
            "eps": lambda c: c.number("norm_epsilon", 1e-5),
            "gated": False,
            "activation": lambda c: c.get("hidden_act", "gelu_pytorch_tanh"),
            **TIED,
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), lambda c: c.flag("use_bias", True)),
        },
        {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
        layer_types=all_windows,
    ),
    "gpt_neox": DecoderFamily(
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
        fused_qkv("attention.query_key_value")
        | {
            "embed_tokens": "embed_in",
            "norm": "final_layer_norm",
            "lm_head": ("embed_out", "lm_head"),
            "self_attn.o_proj": "attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        fused="groups",
        rope=lambda keys, layer_type: {
            "rope_theta": keys.get("rotary_emb_base", 1e4),
            "partial_rotary_factor": keys.get("rotary_pct", 0.25),
        },
        partial_rotary=True,
    ),
    "falcon": DecoderFamily(
        "Falcon",
        {
            "norm": "layer",
            "eps": lambda c: c.number("layer_norm_epsilon", 1e-5),
            "kv_heads": _falcon_kv_heads,
            "head_dim": lambda c: c["dim"] // c["heads"],
            "hidden": lambda c: c.count("ffn_hidden_size", 4 * c["dim"]),
            "gated": False,
            "activation": lambda c: c.get("activation", "gelu"),
            **TIED,
            "parallel": _falcon_parallel,
            "shared_norm": _falcon_shared_norm,
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), lambda c: c.flag("bias")),
        },
        fused_qkv("self_attention.query_key_value")
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
    "olmo2": DecoderFamily(
        "OLMo 2",
        RMS_5 | {"norms": "after", "qk_norm": "row"},
        SANDWICH_NAMES,
    ),
    "olmo3": DecoderFamily(
        "OLMo 3",
        RMS_5 | {"norms": "after", "qk_norm": "row"},
        SANDWICH_NAMES,
        layer_types=last_full("", 4),
        rope=rotary(5e5),
        unscaled_windows=True,
    ),
    "smollm3": DecoderFamily(
        "SmolLM 3",
        TIED,
        layer_types=_smollm3_layer_types,
        rotary_layers=_smollm3_rotary,
        rope=rotary(2e6),
    ),
    "stablelm": DecoderFamily(
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
        partial_rotary=True,
    ),
    "gpt2": DecoderFamily(
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
            **TIED,
            "attention_scale": lambda c: None if c.flag("scale_attn_weights", True) else 1.0,
            **dict.fromkeys(("learned_positions", "qkv_bias", "output_bias", "mlp_bias"), True),
        },
        fused_qkv("attn.c_attn")
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
        rotary_layers=lambda keys, types: [False] * len(types),
        refused=lambda c: next((k for k in GPT2_REFUSED if c.flag(k)), None),
    ),
    "cohere": DecoderFamily(
        "Cohere Command-R",
        COHERE | {"qk_norm": lambda c: "heads" if c.flag("use_qk_norm") else None},
        rope=rotary(5e5),
    ),
    "cohere2": DecoderFamily(
        "Cohere Command-R7B, A",
        COHERE,
        layer_types=last_full("sliding_window_pattern", 4),
        rotary_layers=lambda keys, types: [layer_type == SLIDING for layer_type in types],
    ),
}
