"""A tiny SmolVLM and a tiny Idefics3 with random weights, as folders of the Hub."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from transformers import (
    GenerationConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from .specimen import Specimen

SIZE, PATCH, PACK, ROWS = 32, 8, 2, 4
WORDS = 60
SPECIAL = ["<|im_start|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>", "<global-img>"]
SPECIAL += [f"<row_{r}_col_{c}>" for r in range(1, 5) for c in range(1, 5)]
IMAGE = WORDS + 1 + SPECIAL.index("<image>")
VOCAB = WORDS + 1 + len(SPECIAL)
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
KINDS: dict[str, tuple[Any, Any]] = {
    "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
    "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
}


def model(kind: str = "smolvlm", tied: bool = False) -> Any:
    """Return a model with weights so large that its tokens depend on the picture and on the text."""
    config, network = KINDS[kind]
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "max_position_embeddings": 256, "model_type": "llama", "vocab_size": VOCAB}
    torch.manual_seed(0)
    instance = network(
        config(
            vision_config=vision | {"image_size": SIZE, "patch_size": PATCH},
            text_config=text | more | {"pad_token_id": WORDS},
            scale_factor=PACK,
            image_token_id=IMAGE,
            tie_word_embeddings=tied,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in instance.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(20 if "embed" in name or "connector" in name else 8)
    instance.generation_config = GenerationConfig(bos_token_id=WORDS + 1, eos_token_id=WORDS + 2, pad_token_id=WORDS)
    return instance


def processor(split: bool = True) -> Idefics3ImageProcessorPil:
    sizes = {"size": {"longest_edge": 2 * SIZE}, "max_image_size": {"longest_edge": SIZE}}
    return Idefics3ImageProcessorPil(do_image_splitting=split, **sizes)


def save(network: Any, folder: Path, split: bool = True) -> Path:
    network.save_pretrained(folder)
    processor(split).save_pretrained(folder)
    words = {f"w{k}": k for k in range(WORDS)} | {"?": WORDS}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<end_of_utterance>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 7, 3), np.uint8)
    return np.kron(coarse, np.ones((-(-height // 5), -(-width // 7), 1), np.uint8))[:height, :width]


def _inputs() -> tuple[Any, ...]:
    """Return tokens with placeholders for a picture of one tile, a mask, and the picture."""
    ids = torch.tensor([[1, 2, *[IMAGE] * (SIZE // PATCH // PACK) ** 2, 3]])
    return ids, torch.ones_like(ids), None, None, None, torch.randn(1, 1, 3, SIZE, SIZE)


def _write(kind: str, folder: Path) -> Path:
    return save(model(kind), folder)


SPECIMENS = {kind: Specimen(partial(model, kind), _inputs, partial(_write, kind)) for kind in KINDS}
