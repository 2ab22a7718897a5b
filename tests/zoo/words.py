"""A byte-level tokenizer trained on a few lines, and its files next to a model."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

VOCABULARY = 320
TEXT = [
    "Once upon a time there was a small fox who lived in a wood.",
    "Es war einmal eine Müllerstochter, die schöne Märchen erzählte.",
    "日本語の文字と絵文字 🦊🌲🏠 と「引用」。",
    "The fox said: <tag> and the wood was quiet, and the fox was happy.",
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]


def tokenizer() -> tokenizers.Tokenizer:
    result = tokenizers.Tokenizer(tokenizers.models.BPE())
    result.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    result.train_from_iterator(TEXT, trainer)
    return result


def write_tokenizer(model: Path) -> tokenizers.Tokenizer:
    """Write the tokenizer's files next to a model, and return the tokenizer."""
    result = tokenizer()
    result.save(str(model.with_name(f"{model.stem}.tokenizer.json")))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    model.with_name(f"{model.stem}.tokenizer_config.json").write_text(json.dumps(config))
    return result
